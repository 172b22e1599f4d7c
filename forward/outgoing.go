package forward

import (
	"bytes"
	"io"
	"sync/atomic"
)

// keptBody is the longest body that may stay in memory while its answer comes: of a shorter one the transport sends the header
// in a packet of its own unless it knows the body's type.
const keptBody = 8 << 10

// outgoing is a request's body on its way to an engine. The transport keeps a request until its answer is complete, and with it
// whatever the body still has: here that is nothing once it is sent.
type outgoing struct {
	left atomic.Pointer[bytes.Reader]
}

func newOutgoing(b []byte) *outgoing {
	o := &outgoing{}
	o.left.Store(bytes.NewReader(b))
	return o
}

// Read implements io.Reader.
func (o *outgoing) Read(b []byte) (int, error) {
	if left := o.left.Load(); left != nil {
		return left.Read(b)
	}
	return 0, io.ErrClosedPipe
}

// Close implements io.Closer. The transport calls it when the body is sent, or will not be, also while it reads.
func (o *outgoing) Close() error {
	o.left.Store(nil)
	return nil
}
