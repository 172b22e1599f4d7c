package spread

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The kinds of frames of a feed. A reader skips those that it does not know: a newer version may send more.
const (
	frameHello   byte = 1 // who tells, the first of each feed
	frameEngines byte = 2 // announcement: its number, all engines
	frameDigests byte = 3 // deltas or whole digests
)

// maxFrame bounds kind and body of a frame: a digest of the largest geometry fits.
const maxFrame = 4 << 20

// maxHello bounds the first frame of a feed, with room for what later versions add to a hello.
const maxHello = 1 << 10

// firstRead is what a reader allocates for a frame before any byte of it came: most frames fit, and a liar gets no more
// than this for each feed.
const firstRead = 16 << 10

// errFrame says that a feed cannot be read any further.
var errFrame = errors.New("broken frame")

// appendFrame appends the wire form of a frame: the length of the rest, its kind, its body.
func appendFrame(b []byte, kind byte, body []byte) []byte {
	b = binary.AppendUvarint(b, uint64(1+len(body)))
	b = append(b, kind)
	return append(b, body...)
}

// frameReader reads the frames of a feed.
type frameReader struct {
	r    *bufio.Reader
	most uint64 // bytes of a frame
}

// newFrameReader keeps its buffer small: there is one for each peer, and most frames come alone.
func newFrameReader(r io.Reader) frameReader {
	return frameReader{bufio.NewReaderSize(r, 1<<10), maxFrame}
}

// hello reads the first frame, which must be a hello.
func (f frameReader) hello() (hello, error) {
	f.most = maxHello
	kind, body, err := f.next()
	switch {
	case err != nil:
		return hello{}, err
	case kind != frameHello:
		return hello{}, errNoHello
	}
	return parseHello(body)
}

// next returns the next frame of a kind that is known. The error is io.EOF where a feed ends between two frames.
func (f frameReader) next() (kind byte, body []byte, err error) {
	for {
		size, err := binary.ReadUvarint(f.r)
		switch {
		case err != nil:
			return 0, nil, err
		case size == 0 || size > f.most:
			return 0, nil, fmt.Errorf("%w: of %d bytes", errFrame, size)
		}
		if kind, err = f.r.ReadByte(); err != nil {
			return 0, nil, cut(err)
		}
		if kind >= frameHello && kind <= frameDigests {
			body, err = f.body(int64(size - 1))
			return kind, body, cut(err)
		}
		if _, err := io.CopyN(io.Discard, f.r, int64(size-1)); err != nil {
			return 0, nil, cut(err)
		}
	}
}

// body reads n bytes. It allocates as they come.
func (f frameReader) body(n int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(n, firstRead)) + bytes.MinRead)
	_, err := io.CopyN(&b, f.r, n)
	return b.Bytes(), err
}

// cut tells the end of a feed within a frame from one between two.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
