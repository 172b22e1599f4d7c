package simcluster

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// flowBytes is how much one direction of a connection holds before its writer waits: the order of a kernel's buffers.
const flowBytes = 64 << 10

// flow is one direction of a connection.
type flow struct {
	mu      sync.Mutex
	changed sync.Cond
	data    []byte // written and not read yet
	ended   bool   // the writer closed: after data comes EOF
	gone    error  // of writes: the reader closed
	closed  error  // of reads: the reader itself closed, or the connection was reset
	readBy  limit
	writeBy limit
}

func newFlow() *flow {
	f := &flow{}
	f.changed.L = &f.mu
	return f
}

// limit is a deadline.
type limit struct {
	at    time.Time // zero: none
	timer *time.Timer
}

func (l *limit) over() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

// set replaces a deadline; whoever waits looks again when it is over.
func (f *flow) set(l *limit, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.at = at
	if wait := time.Until(at); !at.IsZero() && wait > 0 {
		l.timer = time.AfterFunc(wait, f.changed.Broadcast)
	}
	f.changed.Broadcast()
}

func (f *flow) read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.closed != nil:
			return 0, f.closed
		case f.readBy.over():
			return 0, os.ErrDeadlineExceeded
		case len(f.data) > 0:
			n := copy(p, f.data)
			f.data = f.data[n:]
			f.changed.Broadcast()
			return n, nil
		case f.ended:
			return 0, io.EOF
		}
		f.changed.Wait()
	}
}

func (f *flow) write(p []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch room := flowBytes - len(f.data); {
		case f.ended:
			return n, net.ErrClosed
		case f.gone != nil:
			return n, f.gone
		case f.writeBy.over():
			return n, os.ErrDeadlineExceeded
		case len(p) == 0:
			return n, nil
		case room > 0:
			part := min(room, len(p))
			f.data = append(f.data, p[:part]...)
			n, p = n+part, p[part:]
			f.changed.Broadcast()
			continue
		}
		f.changed.Wait()
	}
}

// endWrite is the writer's close.
func (f *flow) endWrite() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.quiet(&f.writeBy)
}

// endRead is the reader's close.
func (f *flow) endRead() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed == nil {
		f.closed, f.gone, f.data = net.ErrClosed, os.NewSyscallError("write", syscall.EPIPE), nil
	}
	f.quiet(&f.readBy)
}

// reset ends both sides at once; what was under way is lost.
func (f *flow) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed == nil {
		f.closed = os.NewSyscallError("read", syscall.ECONNRESET)
	}
	f.gone, f.data = os.NewSyscallError("write", syscall.ECONNRESET), nil
	f.quiet(&f.readBy)
	f.quiet(&f.writeBy)
}

// quiet drops a deadline that nobody needs any more and wakes whoever waits.
func (f *flow) quiet(l *limit) {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	f.changed.Broadcast()
}
