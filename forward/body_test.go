package forward

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
)

func TestBodyIsReadWholeInWhateverPieces(t *testing.T) {
	g := newMemMesh(t, "a").agents["a"].Ingress
	g.MaxBody = 3 << 20
	all := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	for _, size := range []int{0, 1, 511, 512, 513, 100_000, firstRead, firstRead + bytes.MinRead, firstRead + bytes.MinRead + 1, 2<<20 + 1, 3 << 20} {
		for _, claimed := range []bool{true, false} {
			for name, wrap := range map[string]func(io.Reader) io.Reader{
				"plain": func(r io.Reader) io.Reader { return r }, "half": iotest.HalfReader, "end with data": iotest.DataErrReader,
			} {
				r := httptest.NewRequest(http.MethodPost, "/", wrap(bytes.NewReader(all[:size])))
				if r.ContentLength = -1; claimed {
					r.ContentLength = int64(size)
				}
				body, release, bad := g.readBody(httptest.NewRecorder(), r)
				if bad != nil || !bytes.Equal(body, all[:size]) || g.bodies.held.Load() != int64(size) {
					t.Fatalf("%d bytes, %s, length told %v: got %d, %d held, %v", size, name, claimed, len(body), g.bodies.held.Load(), bad)
				}
				if claimed && cap(body) > size+4096 {
					t.Errorf("%d bytes, %s: there is room for %d", size, name, cap(body))
				}
				release()
			}
		}
	}
}

func TestBodyOfAPeerTakesNoMoreThanItsSize(t *testing.T) {
	for _, size := range []int{1, maxFrame, 5*maxFrame + 3} {
		var buf bytes.Buffer
		w := newFrameWriter(&buf)
		want := bytes.Repeat([]byte("x"), size)
		for at := 0; at < size; at += chunk {
			if err := w.write(frameBody, want[at:min(at+chunk, size)]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.flush(); err != nil {
			t.Fatal(err)
		}
		got, err := readBody(newFrameReader(&buf), size)
		if err != nil || !bytes.Equal(got, want) || cap(got) > size+8192 {
			t.Errorf("%d bytes: got %d, room for %d, %v", size, len(got), cap(got), err)
		}
	}
}
