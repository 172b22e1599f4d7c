package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of what a target can make the runner hold.
const (
	maxEventBytes  = 1 << 20
	maxAnswerBytes = 4 << 20
)

var (
	errNoEnd      = errors.New("stream ended without [DONE]")
	errEvent      = errors.New("error event in stream")
	errLongAnswer = errors.New("answer is longer than the runner holds")
)

// answer is what one stream said.
type answer struct {
	text  strings.Builder // content of the first choice; thoughts and tool calls are not part of the next prompt
	began bool            // any content came
	usage *usage
}

type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	PromptTokensDetails *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u *usage) cached() int {
	if u.PromptTokensDetails == nil {
		return 0
	}
	return u.PromptTokensDetails.CachedTokens
}

// chunk is what the runner reads of a chat.completion.chunk, and of an error in its place.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content          string          `json:"content"`
			Reasoning        string          `json:"reasoning"`
			ReasoningContent string          `json:"reasoning_content"`
			ToolCalls        json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// readStream reads server-sent events of chat chunks until [DONE] and calls first at the first content, of whatever
// kind.
func readStream(r io.Reader, first func()) (*answer, error) {
	a := &answer{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
		payload, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		payload = bytes.TrimSpace(payload)
		if !ok || len(payload) == 0 {
			continue
		}
		if string(payload) == "[DONE]" {
			return a, nil
		}
		content, err := a.add(payload)
		if err != nil {
			return a, err
		}
		if content && !a.began {
			a.began = true
			first()
		}
	}
	if err := lines.Err(); err != nil {
		return a, fmt.Errorf("read stream: %w", err)
	}
	return a, errNoEnd
}

// add takes in one event and reports whether it brought content.
func (a *answer) add(payload []byte) (bool, error) {
	var c chunk
	if err := json.Unmarshal(payload, &c); err != nil {
		return false, fmt.Errorf("parse chunk: %w", err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return false, errEvent
	}
	if c.Usage != nil {
		a.usage = c.Usage
	}
	if len(c.Choices) == 0 {
		return false, nil
	}
	d := &c.Choices[0].Delta
	if a.text.Len()+len(d.Content) > maxAnswerBytes {
		return false, errLongAnswer
	}
	a.text.WriteString(d.Content)
	tools := len(d.ToolCalls) > 2 && string(d.ToolCalls) != "null"
	return d.Content != "" || d.Reasoning != "" || d.ReasoningContent != "" || tools, nil
}
