package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
)

// maxEvent bounds one line of an event stream.
const maxEvent = 4 << 20

// events returns the data of the server-sent events in r, as they come. The last pair has the error that ended the
// stream, if it was not its end.
func events(r io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxEvent)
		var data []byte
		for lines.Scan() {
			line := bytes.TrimSuffix(lines.Bytes(), []byte("\r"))
			if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
				if data == nil {
					data = []byte{} // an event without data is one all the same
				} else {
					data = append(data, '\n')
				}
				data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
			}
			if len(line) == 0 && data != nil {
				if !yield(data, nil) {
					return
				}
				data = nil
			}
		}
		if err := lines.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// chunk is what one event of a chat stream means to a client.
type chunk struct {
	content bool // text of the answer
	done    bool // [DONE]
	err     error
}

func readChunk(data []byte) chunk {
	if string(data) == "[DONE]" {
		return chunk{done: true}
	}
	var v struct {
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return chunk{err: err}
	}
	if len(v.Error) > 0 && string(v.Error) != "null" {
		return chunk{err: errors.Join(errStreamError, errors.New(string(v.Error)))}
	}
	var c chunk
	for _, choice := range v.Choices {
		c.content = c.content || choice.Delta.Content != ""
	}
	return c
}
