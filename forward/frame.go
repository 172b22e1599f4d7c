package forward

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// frameType is the first byte of a frame. A frame is its type, the uvarint length of its payload, and the payload:
// fields in fixed order as uvarints and length-prefixed bytes. Bytes after the last known field are ignored, so that a
// later version may append fields. DESIGN.md of this package has the table.
type frameType byte

const (
	frameRequest frameType = 1 + iota // ingress → owner, first
	frameBody                         // ingress → owner, any number, then the end of the stream
	frameAccept                       // owner → ingress: booked
	frameBounce                       // owner → ingress: not me; last
	frameHead                         // status and header of the engine's answer
	frameData                         // bytes of the answer without content so far
	frameContent                      // bytes of the answer from the first content on
	frameEnd                          // the answer is complete; last
	frameFail                         // the engine failed; last
	frameTokens                       // owner → ingress: ids of the prompt, or of the content that the next frame brings
)

// Limits of the hop. They are checked before anything is allocated.
const (
	maxFrame      = 1 << 20   // bytes of one frame's payload; larger bodies and answers take several frames
	maxPath       = 4096      // bytes of a path with its query
	maxHeaders    = 128       // fields in a header block
	maxHeaderText = 64 << 10  // bytes of one field
	maxKeys       = 2048      // prompt keys; the key scheme makes at most 1,024
	maxEngines    = 256       // engines of one agent
	maxHops       = 1         // from the ingress to an owner; what came from a peer is never forwarded
	maxLeft       = 1 << 40   // microseconds of a request's time; twelve days
	earlyBody     = 64 << 10  // bodies above this wait for the accept
	chunk         = 256 << 10 // bytes of body in one frame
)

// frameBuffer is the buffer of each direction of a stream, of which thousands may be open: it gathers frames of events, and
// what is larger passes it by.
const frameBuffer = 4 << 10

var errFrameTooLarge = errors.New("frame too large")

// frameWriter writes frames to one stream. Small frames are gathered until flush.
type frameWriter struct {
	w *bufio.Writer
}

func newFrameWriter(w io.Writer) *frameWriter {
	return &frameWriter{bufio.NewWriterSize(w, frameBuffer)}
}

func (f *frameWriter) write(t frameType, payload []byte) error {
	var head [binary.MaxVarintLen64 + 1]byte
	head[0] = byte(t)
	n := 1 + binary.PutUvarint(head[1:], uint64(len(payload)))
	if _, err := f.w.Write(head[:n]); err != nil {
		return err
	}
	_, err := f.w.Write(payload)
	return err
}

func (f *frameWriter) flush() error { return f.w.Flush() }

// frameReader reads frames from one stream into a buffer that it reuses: a payload is valid until the next read.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, frameBuffer)}
}

func (f *frameReader) read() (frameType, []byte, error) {
	t, n, err := f.next()
	if err != nil {
		return 0, nil, err
	}
	if f.buf, err = f.appendTo(f.buf[:0], n); err != nil {
		return 0, nil, err
	}
	return t, f.buf, nil
}

// next reads the beginning of a frame: its type and the size of the payload that follows.
func (f *frameReader) next() (frameType, int, error) {
	t, err := f.r.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	n, err := binary.ReadUvarint(f.r)
	if err != nil {
		return 0, 0, unexpectedEOF(err)
	}
	if n > maxFrame {
		return 0, 0, fmt.Errorf("%w: %d bytes", errFrameTooLarge, n)
	}
	return frameType(t), int(n), nil
}

// appendTo appends n bytes of payload to b, which grows as they come and not as the peer announces them.
func (f *frameReader) appendTo(b []byte, n int) ([]byte, error) {
	const step = 64 << 10
	for n > 0 {
		part := min(n, max(step, cap(b)-len(b)))
		at := len(b)
		b = slices.Grow(b, part)[:at+part]
		if _, err := io.ReadFull(f.r, b[at:]); err != nil {
			return b[:at], unexpectedEOF(err)
		}
		n -= part
	}
	return b, nil
}

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// call is what an owner needs to know to serve one request: the payload of a REQUEST frame.
type call struct {
	Engine        string            // the engine's name at its owner
	Generation    engine.Generation // of the digest that the decision saw; 0 when it saw none
	ID            string            // x-request-id
	Method        string
	Path          string // with its query
	Header        http.Header
	Prompt        cachestate.Prompt
	QueuedAtProbe float64 // seconds queued that the probe answered; negative when the engine was not probed
	Second        bool    // a second owner accepts unless down, draining or full
	Forced        bool    // an ejected engine takes it: too few others are left
	Once          bool    // the request must not be done twice: a stored or background response
	Media         bool    // the prompt's bytes say little of its tokens
	Tokens        bool    // the ingress wants the answer's token ids: another engine may have to go on with it
	Continues     bool    // the body is a completion's that goes on with an answer, after the prompt and what there is of it
	BodySize      int

	// What the owner needs to know to learn from the answer.

	Traits openai.Traits
	Model  string // as the client wrote it; "" when it is longer than what is passed on
	Salt   string // cache_salt
	LoRA   string // lora_path

	Left     time.Duration // until the ingress gives the request up; 0 when it did not say
	Class    string        // of the ingress's policy; "" of an earlier version
	Priority int           // of that class, -128 to 127
	Hops     int           // agents that the request has left; 0 of an earlier version

	sent func() // called when the engine has the body; not on the wire
}

func appendCall(c *call) []byte {
	b := engine.AppendString(nil, c.Engine)
	b = binary.AppendUvarint(b, uint64(c.Generation))
	b = engine.AppendString(b, c.ID)
	b = engine.AppendString(b, c.Method)
	b = engine.AppendString(b, c.Path)
	b = appendHeader(b, c.Header)
	b = appendPrompt(b, &c.Prompt)
	b = binary.AppendUvarint(b, uint64(max(c.QueuedAtProbe+1, 0)*1e6))
	next := c.Prompt.Next
	if next == nil {
		next = &cachestate.Prompt{}
	}
	b = append(b, flag(c.Second)|flag(c.Once)<<1|flag(c.Media)<<2|flag(next.Alike)<<3|flag(c.Tokens)<<4|flag(c.Continues)<<5|flag(c.Forced)<<6)
	b = binary.AppendUvarint(b, uint64(c.BodySize))
	b = binary.AppendUvarint(b, uint64(c.Traits))
	b = engine.AppendString(b, c.Model)
	b = engine.AppendString(b, c.Salt)
	return appendTerms(appendPrompt(engine.AppendString(b, c.LoRA), next), c)
}

func appendTerms(b []byte, c *call) []byte {
	b = binary.AppendUvarint(b, uint64(min(max(c.Left.Microseconds(), 0), maxLeft)))
	b = engine.AppendString(b, c.Class)
	b = append(b, byte(int8(c.Priority)))
	return binary.AppendUvarint(b, uint64(c.Hops))
}

func parseCall(b []byte, maxBody int) (*call, error) {
	r := engine.NewReader(b)
	c := &call{
		Engine:     r.String(256),
		Generation: engine.Generation(r.Uvarint()),
		ID:         r.String(256),
		Method:     r.String(16),
		Path:       r.String(maxPath),
	}
	c.Header = readHeader(r)
	readPrompt(r, &c.Prompt)
	c.QueuedAtProbe = float64(r.Uvarint())/1e6 - 1
	flags := r.Byte()
	c.Second, c.Once, c.Media = flags&1 != 0, flags&2 != 0, flags&4 != 0
	c.Tokens, c.Continues, c.Forced = flags&16 != 0, flags&32 != 0, flags&64 != 0
	c.BodySize = r.Int(uint64(maxBody))
	c.Traits = openai.Traits(r.Int(math.MaxUint16))
	c.Model, c.Salt, c.LoRA = r.String(openai.MaxNameBytes), r.String(openai.MaxNameBytes), r.String(openai.MaxNameBytes)
	readNext(r, &c.Prompt, flags&8 != 0)
	readTerms(r, c)
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("parse request frame: %w", err)
	}
	return c, nil
}

// readNext reads the other form of a prompt's keys. Before there was one, nothing stood here.
func readNext(r *engine.Reader, p *cachestate.Prompt, alike bool) {
	if len(r.Rest()) == 0 {
		return
	}
	next := &cachestate.Prompt{Alike: alike}
	if readPrompt(r, next); len(next.Keys) > 0 {
		p.Next = next
	}
}

// readTerms reads on what terms the ingress asks. Before there were any, nothing stood here.
func readTerms(r *engine.Reader, c *call) {
	if len(r.Rest()) == 0 {
		return
	}
	c.Left = time.Duration(r.Int(maxLeft)) * time.Microsecond
	c.Class = r.String(openai.MaxNameBytes)
	c.Priority = int(int8(r.Byte()))
	c.Hops = r.Int(math.MaxUint8)
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendPrompt(b []byte, p *cachestate.Prompt) []byte {
	b = binary.AppendUvarint(b, uint64(p.Bytes))
	b = binary.AppendUvarint(b, uint64(len(p.Keys)))
	var last uint32
	var odd, high uint32
	for i, k := range p.Keys {
		b = binary.LittleEndian.AppendUint64(b, uint64(k))
		b = binary.AppendUvarint(b, uint64(p.Offsets[i]-last))
		b = binary.AppendUvarint(b, uint64(p.Odd[i]-odd))
		b = binary.AppendUvarint(b, uint64(p.High[i]-high))
		last, odd, high = p.Offsets[i], p.Odd[i], p.High[i]
	}
	b = binary.AppendUvarint(b, uint64(p.Sure))
	return append(b, byte(p.Turn))
}

func readPrompt(r *engine.Reader, p *cachestate.Prompt) {
	p.Bytes = int64(r.Int(math.MaxUint32))
	n := r.Int(maxKeys)
	if n*11 > len(r.Rest()) { // a key and its three gaps take at least eleven bytes
		n = len(r.Rest()) / 11
	}
	p.Keys, p.Offsets = make([]cachestate.Key, 0, n), make([]uint32, 0, n)
	p.Odd, p.High = make([]uint32, 0, n), make([]uint32, 0, n)
	var last, odd, high uint64
	for range n {
		p.Keys = append(p.Keys, cachestate.Key(r.Uint64()))
		last += uint64(r.Int(uint64(p.Bytes) - last)) // no boundary lies beyond the prompt
		p.Offsets = append(p.Offsets, uint32(last))
		odd += uint64(r.Int(math.MaxUint32 - odd))
		high += uint64(r.Int(math.MaxUint32 - high))
		p.Odd, p.High = append(p.Odd, uint32(odd)), append(p.High, uint32(high))
	}
	p.Sure = min(r.Int(maxKeys), len(p.Keys))
	if p.Turn = cachestate.Turn(r.Byte()); !p.Turn.Valid() {
		p.Turn = cachestate.TurnUser
	}
}

func appendHeader(b []byte, h http.Header) []byte {
	n := 0
	for _, vs := range h {
		n += len(vs)
	}
	b = binary.AppendUvarint(b, uint64(n))
	for k, vs := range h {
		for _, v := range vs {
			b = engine.AppendString(engine.AppendString(b, k), v)
		}
	}
	return b
}

func readHeader(r *engine.Reader) http.Header {
	n := r.Int(maxHeaders)
	h := make(http.Header, n)
	for range n {
		k, v := r.String(256), r.String(maxHeaderText)
		h[k] = append(h[k], v)
	}
	return h
}

// head is the payload of a HEAD frame.
type head struct {
	Status int
	Header http.Header
}

func appendHead(h *head) []byte {
	return appendHeader(binary.AppendUvarint(nil, uint64(h.Status)), h.Header)
}

func parseHead(b []byte) (*head, error) {
	r := engine.NewReader(b)
	h := &head{Status: r.Int(999)}
	h.Header = readHeader(r)
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("parse head frame: %w", err)
	}
	if h.Status < 200 {
		return nil, fmt.Errorf("parse head frame: %d is no status of an answer", h.Status)
	}
	return h, nil
}

// verdict is the payload of ACCEPT, BOUNCE and FAIL: the owner's load, and why for the latter two.
type verdict struct {
	Reason string
	Load   engine.Load
}

// reasons are the words in which owners bounce and fail. They become labels of metrics, so a peer's other words do not.
var reasons = []string{
	"", "unknown", "down", "draining", "full", "generation", "queue", "ejected", "body_budget", "deadline", "loop", "memory", // bounces
	"not_allowed", "cannot_continue", // bounces for good
	"truncated_body", "refused", "reset", "bad_event", "truncated", "stream_error", "stuck", reasonStopped, // failures
}

func knownReason(s string) string {
	if slices.Contains(reasons, s) {
		return s
	}
	return "other"
}

func appendVerdict(v verdict) []byte {
	return engine.AppendLoad(engine.AppendString(nil, v.Reason), v.Load)
}

// parseVerdict returns all but the load with an engine.ErrImplausible.
func parseVerdict(b []byte) (verdict, error) {
	r := engine.NewReader(b)
	v := verdict{Reason: knownReason(r.String(256))}
	if err := r.Err(); err != nil {
		return verdict{}, fmt.Errorf("parse verdict: %w", err)
	}
	var err error
	v.Load, _, err = engine.ParseLoad(r.Rest())
	return v, err
}

// ending is the payload of END: what the engine counted, and the owner's load.
type ending struct {
	Usage    openai.Usage
	HasUsage bool
	Failed   bool // the answer is an error that the engine reported inside a stream
	Load     engine.Load
	Trailer  http.Header // of the engine's answer; nil for none
}

func appendEnding(e ending) []byte {
	b := []byte{flag(e.HasUsage) | flag(e.Usage.HasCached)<<1 | flag(e.Failed)<<2}
	b = binary.AppendUvarint(b, uint64(e.Usage.PromptTokens))
	b = binary.AppendUvarint(b, uint64(e.Usage.CompletionTokens))
	b = binary.AppendUvarint(b, uint64(e.Usage.CachedTokens))
	b = engine.AppendLoad(b, e.Load)
	if len(e.Trailer) == 0 {
		return b
	}
	return appendHeader(b, e.Trailer)
}

// parseEnding returns all but the load with an engine.ErrImplausible.
func parseEnding(b []byte) (ending, error) {
	r := engine.NewReader(b)
	flags := r.Byte()
	e := ending{HasUsage: flags&1 != 0, Failed: flags&4 != 0}
	e.Usage = openai.Usage{
		PromptTokens:     r.Int(1 << 40),
		CompletionTokens: r.Int(1 << 40),
		CachedTokens:     r.Int(1 << 40),
		HasCached:        flags&2 != 0,
	}
	if err := r.Err(); err != nil {
		return ending{}, fmt.Errorf("parse end frame: %w", err)
	}
	load, rest, implausible := engine.ParseLoad(r.Rest())
	if e.Load = load; len(rest) > 0 {
		r := engine.NewReader(rest)
		if e.Trailer = readHeader(r); r.Err() != nil {
			return ending{}, fmt.Errorf("parse trailer of end frame: %w", r.Err())
		}
	}
	return e, implausible
}
