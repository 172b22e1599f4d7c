package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// What one line of a Mooncake trace may hold. Real lines stay below 2 kB, 250 blocks and 130,000 tokens; the limits
// leave room for longer contexts and keep a broken file from taking the machine's memory.
const (
	maxLineBytes = 1 << 20
	maxTokens    = 1 << 24
	maxTraceTime = 366 * 24 * time.Hour
	maxRequests  = 1 << 22
)

const mooncakeBlockTokens = 512

// MooncakeQuantum is the tick of the clock in Mooncake's traces: give it to Trace.Jitter.
const MooncakeQuantum = 3 * time.Second

//go:embed data/conversation_slice.jsonl.gz
var data embed.FS

// ConversationSlice returns the part of Mooncake's conversation trace that is shipped in the binary: 2,000 requests of
// 669 s, 13.7 k tokens each in the mean. Data/README.md names its source.
func ConversationSlice() (Trace, error) {
	f, err := data.Open("data/conversation_slice.jsonl.gz")
	if err != nil {
		return Trace{}, fmt.Errorf("open embedded trace: %w", err)
	}
	defer f.Close()
	return ReadMooncake(f)
}

// ReadMooncake reads a trace in the format of github.com/kvcache-ai/Mooncake (FAST25-release/traces), plain or gzip:
// a JSON object a line, with timestamp (ms), input_length, output_length and hash_ids, the ids of 512-token blocks.
// The error names the line.
func ReadMooncake(r io.Reader) (Trace, error) {
	plain, err := gunzip(r)
	if err != nil {
		return Trace{}, err
	}
	t := Trace{BlockTokens: mooncakeBlockTokens}
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, maxLineBytes)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := t.addMooncake(lines.Bytes()); err != nil {
			return Trace{}, fmt.Errorf("read line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Trace{}, fmt.Errorf("read after request %d: %w", len(t.Requests), err)
	}
	return t, nil
}

// gunzip returns what r holds, unpacked when it begins as gzip does.
func gunzip(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, fmt.Errorf("unpack trace: %w", err)
	}
	return z, nil
}

type mooncakeLine struct {
	Timestamp    int64    `json:"timestamp"`
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

func (t *Trace) addMooncake(line []byte) error {
	var l mooncakeLine
	if err := json.Unmarshal(line, &l); err != nil {
		return fmt.Errorf("parse request: %w", err)
	}
	if err := l.validate(); err != nil {
		return err
	}
	r := TraceRequest{
		At:          time.Duration(l.Timestamp) * time.Millisecond,
		InputTokens: l.InputLength, OutputTokens: l.OutputLength,
	}
	for _, id := range l.HashIDs {
		r.Blocks = appendID(r.Blocks, id)
	}
	if n := len(t.Requests); n > 0 && r.At < t.Requests[n-1].At {
		return errors.New("timestamp goes back")
	}
	if len(t.Requests) == maxRequests {
		return fmt.Errorf("more than %d requests", maxRequests)
	}
	t.Requests = append(t.Requests, r)
	return nil
}

func (l *mooncakeLine) validate() error {
	switch {
	case l.Timestamp < 0 || l.Timestamp > maxTraceTime.Milliseconds():
		return fmt.Errorf("timestamp %d ms is out of range", l.Timestamp)
	case l.InputLength < 1 || l.InputLength > maxTokens:
		return fmt.Errorf("input_length %d is out of range", l.InputLength)
	case l.OutputLength < 0 || l.OutputLength > maxTokens:
		return fmt.Errorf("output_length %d is out of range", l.OutputLength)
	case len(l.HashIDs) != (l.InputLength+mooncakeBlockTokens-1)/mooncakeBlockTokens:
		return fmt.Errorf("%d hash_ids do not cover input_length %d", len(l.HashIDs), l.InputLength)
	}
	return nil
}
