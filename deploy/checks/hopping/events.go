package main

import (
	"bufio"
	"bytes"
	"io"
	"iter"
)

// maxEvent bounds one line of an event stream, and an answer that is no stream.
const maxEvent = 4 << 20

// events returns the data of the server-sent events in r, as they come. The last pair has the error that ended the
// stream, if it was not its end.
func events(r io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxEvent)
		for lines.Scan() {
			if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok && !yield(data, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(nil, err)
		}
	}
}
