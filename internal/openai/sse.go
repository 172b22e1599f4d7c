package openai

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrTruncated is returned when a stream ends in the middle of an event.
var ErrTruncated = errors.New("stream ends inside an event")

// ErrLine is returned when an event is longer than the stream's bound.
var ErrLine = errors.New("event is too long")

// Stream cuts the body of a streamed answer into server-sent events (WHATWG HTML, section 9.2, with lines that end in
// LF or CR LF) and looks for what routing wants to know. It may be fed in any pieces; it is for one goroutine.
type Stream struct {
	route   Route
	maxLine int
	hints   [][]byte

	buf  []byte // an event that has not ended yet
	line int    // bytes of its last line so far
	cr   bool   // that line is a single CR so far
	data []byte // data of an event with several data lines

	started  bool // content was seen
	usage    Usage
	hasUsage bool
}

// NewStream returns a Stream for an answer of the route. No event, and so no line, may be longer than maxLine bytes: an
// engine that returns the token ids of a prompt puts megabytes into one line, so 32 MiB is a good bound for an engine.
func NewStream(route Route, maxLine int) *Stream {
	return &Stream{route: route, maxLine: maxLine, hints: hints(route)}
}

// Feed takes the next bytes of the body and yields every event that they end. Each byte of the body is in the Raw of
// exactly one event, comments and blank lines too, in order. When yield returns false, or after an error, the stream is
// not to be fed again.
func (s *Stream) Feed(b []byte, yield func(Event) bool) error {
	for len(b) > 0 {
		n, whole := s.cut(b)
		if len(s.buf)+n > s.maxLine {
			return fmt.Errorf("read stream: %w: more than %d bytes", ErrLine, s.maxLine)
		}
		raw := b[:n]
		if len(s.buf) > 0 || !whole {
			s.buf = append(s.buf, raw...)
			raw = s.buf
		}
		if !whole {
			return nil
		}
		more := yield(s.event(raw))
		s.buf = emptied(s.buf)
		if !more {
			return nil
		}
		b = b[n:]
	}
	return nil
}

// keptBuffer is the largest buffer that a stream keeps from one event to the next. Events are hundreds of bytes; the rare
// one of megabytes must not hold its memory for the rest of the stream.
const keptBuffer = 64 << 10

func emptied(b []byte) []byte {
	if cap(b) > keptBuffer {
		return nil
	}
	return b[:0]
}

// cut returns how many bytes of b belong to the event that is under way, and whether it ends with them.
func (s *Stream) cut(b []byte) (int, bool) {
	for i := 0; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			s.cr = s.line == 0 && len(b)-i == 1 && b[i] == '\r' || s.cr && len(b) == i
			s.line += len(b) - i
			return len(b), false
		}
		blank := s.line == 0 && (j == 0 || j == 1 && b[i] == '\r') || s.cr && j == 0
		s.line, s.cr = 0, false
		i += j + 1
		if blank {
			return i, true
		}
	}
}

// event reads one whole event.
func (s *Stream) event(raw []byte) Event {
	e := Event{Raw: raw}
	data, ok := s.dataOf(raw)
	if !ok {
		return e
	}
	f := s.look(data)
	e.Content = f.content && !s.started
	e.Done, e.Failed = f.done, f.failed
	s.started = s.started || f.content
	return e
}

// dataOf returns the data of an event: that of its data lines, joined by LF. It has none when no line is one.
func (s *Stream) dataOf(raw []byte) (data []byte, ok bool) {
	joined := false
	for len(raw) > 0 {
		line := raw
		if i := bytes.IndexByte(raw, '\n'); i >= 0 {
			line, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		value, isData := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\r")), []byte("data:"))
		if !isData {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if !ok {
			data, ok = value, true
			continue
		}
		if !joined { // data still aliases the event
			s.data, joined = append(s.data[:0], data...), true
		}
		s.data = append(append(s.data, '\n'), value...)
		data = s.data
	}
	return data, ok
}

// Usage returns what the stream has said of usage so far, and whether it has said anything.
func (s *Stream) Usage() (Usage, bool) { return s.usage, s.hasUsage }

// Close reports whether the stream ended between two events.
func (s *Stream) Close() error {
	if len(s.buf) > 0 {
		return ErrTruncated
	}
	return nil
}
