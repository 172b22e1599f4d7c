package forward

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// deadlineWriter keeps the write deadline that was set last.
type deadlineWriter struct {
	discardWriter
	deadline time.Time
	set      int
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	w.set++
	return nil
}

func TestClientHasTwoMinutesForEachWrite(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := &deadlineWriter{discardWriter: discardWriter{http.Header{}}}
			var left []time.Duration
			a := newAnswer(w, 0, false)
			a.http2 = http2
			for range 1000 {
				a.out.Lock()
				a.armLocked()
				a.out.Unlock()
				left = append(left, time.Until(w.deadline))
				if err := a.write(nil, []byte("x")); err != nil {
					t.Fatal(err)
				}
				if http2 != w.deadline.IsZero() {
					t.Fatalf("HTTP/2 %v: the deadline between writes is %v", http2, w.deadline)
				}
				time.Sleep(100 * time.Millisecond)
			}
			for _, d := range left {
				if d > writeDeadline || d < writeDeadline*7/8 {
					t.Fatalf("HTTP/2 %v: %v left", http2, d)
				}
			}
			if !http2 && w.set > 10 {
				t.Errorf("set %d times", w.set)
			}
			if a.close(); !w.deadline.IsZero() {
				t.Errorf("HTTP/2 %v: the deadline %v stays with the connection", http2, w.deadline)
			}
		})
	}
}
