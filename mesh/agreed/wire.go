package agreed

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
)

// The first byte of a stream: what it is for.
const (
	streamRaft  = 'r' // raft's own protocol, until one side closes
	streamQuery = 'q' // one question frame, one answer frame, and a state if the answer says so
	streamWatch = 'w' // the watcher's mark, then news frames until one side closes
)

const (
	maxQuestion = maxCommand + 16<<10 // a command, and what is around it
	maxAnswer   = 64 << 10            // names of voters and a founding
)

// writeFrame writes one frame: its length as a uvarint, and its bytes.
func writeFrame(w io.Writer, body []byte) error {
	frame := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen32+len(body)), uint64(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

// readFrame reads one frame of at most limit bytes; a longer one is refused before anything is allocated.
func readFrame(r *bufio.Reader, limit int) ([]byte, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	if n > uint64(limit) {
		return nil, fmt.Errorf("frame of %d bytes, at most %d are allowed", n, limit)
	}
	body := make([]byte, n)
	_, err = io.ReadFull(r, body)
	return body, err
}

func writeJSON(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	return writeFrame(w, body)
}

func readJSON(r *bufio.Reader, limit int, v any) error {
	body, err := readFrame(r, limit)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// readState reads a state frame and compares it with what was announced.
func readState(r *bufio.Reader, want mark) (*held, error) {
	raw, err := readFrame(r, MaxState)
	if err != nil {
		return nil, err
	}
	h, err := parseHeld(raw)
	if err != nil {
		return nil, err
	}
	if h.mark != want {
		return nil, fmt.Errorf("state of index %d is not the one announced for index %d", h.mark.Index, want.Index)
	}
	return h, nil
}
