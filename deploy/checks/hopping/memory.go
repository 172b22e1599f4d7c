package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

const (
	// memoryLimit is what each agent of the check may use, and so the bound of its resident memory. Of it a quarter is for
	// bodies, which an owner may hold twice; 2,000 streams that nobody reads take some 300 MB at their ingress; new requests are
	// refused from three quarters on, and the collector keeps to nine tenths.
	memoryLimit = 1 << 30

	slowStreams = 2000
	slowTokens  = 600 // some 140 kB: more than the buffers of both sockets and the window between the agents take
	largeBodies = 100
	largeBytes  = 20 << 20
	openGap     = 5 * time.Millisecond // between two of them: all at once would be an overload, which is to be refused
	hurry       = 20                   // how much faster the engine is than a real one while it fills the slow streams

	// addedGap is what 2,000 clients that do not read may add to the p99 of the time between events of other streams.
	addedGap = 5 * time.Millisecond
	// addedGapOfBodies is one token's time. It is over what streams of the engine itself have meanwhile: the clients and the engine
	// read and write 2 GB on the same cores.
	addedGapOfBodies = 20 * time.Millisecond
)

// checkMemory has thousands of clients that hardly read, then a hundred bodies of 20 MB at once, and looks at the memory of
// the agents and at streams beside.
func checkMemory(ctx context.Context, h *check.Harness) error {
	m, err := startHop(ctx, h, []string{"--memory-limit", strconv.Itoa(memoryLimit)},
		[]string{"--speed", strconv.Itoa(hurry), "--max-running", strconv.Itoa(maxRunning), "--answer-tokens", "100000", "--prefill-rate", "1000000", "--capacity-tokens", "50000000"})
	if err != nil {
		return err
	}
	defer m.Close()
	watch := watchRSS(ctx, m)
	defer watch.stop()
	h.Say("agents at rest: %s", watch.now())
	alone, err := playUnhurried(ctx, m, m.Agents[0].HTTP)
	if err != nil {
		return err
	}
	if err := slowReaders(ctx, h, m, watch, &alone); err != nil {
		return err
	}
	if err := manyBodies(ctx, h, m, watch); err != nil {
		return err
	}
	return m.AwaitRest(ctx, 20*time.Second)
}

// playUnhurried plays streams at addr with the times of a real engine.
func playUnhurried(ctx context.Context, m *lab.Mesh, addr string) (p paced, err error) {
	if err := m.Agents[1].SetFaults(ctx, simengine.Faults{Slow: hurry}); err != nil {
		return p, err
	}
	if p, err = playPaced(ctx, addr, pacedAtOnce, 200); err != nil {
		return p, err
	}
	return p, m.Agents[1].SetFaults(ctx, simengine.Faults{})
}

// slowReaders opens streams that are hardly read, lets others run beside them, and then reads them to their ends.
func slowReaders(ctx context.Context, h *check.Harness, m *lab.Mesh, watch *rssWatch, alone *paced) error {
	n := slowStreams
	if h.Short {
		n /= 10
	}
	before, err := m.Agents[1].EngineStats(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var broken atomic.Int64
	readOn := make(chan struct{})
	var firstErr atomic.Pointer[error]
	for i := range n {
		time.Sleep(openGap)
		wg.Go(func() {
			if err := hardlyRead(ctx, m.Agents[0].HTTP, i, readOn); err != nil {
				broken.Add(1)
				firstErr.CompareAndSwap(nil, &err)
			}
		})
	}
	said := func() bool {
		s, err := m.Agents[1].EngineStats(ctx)
		return err == nil && s.Finished-before.Finished >= int64(n) && s.Running == 0 || broken.Load() > 0
	}
	if err := check.Await(ctx, 8*time.Minute, "the engine to have said all", said); err != nil {
		return err
	}
	h.Say("%d streams hang: %s", n, watch.now())
	beside, err := playUnhurried(ctx, m, m.Agents[0].HTTP)
	if err != nil {
		return err
	}
	close(readOn)
	wg.Wait()
	text := "none"
	if err := firstErr.Load(); err != nil {
		text = (*err).Error()
	}
	watch.report(h, "slow_readers", "%d streams of %d tokens, read at some 100 bytes a second until all is in buffers", n, slowTokens)
	h.Figures.Zero("slow_readers_broken", float64(broken.Load()), "streams that were not complete in the end, of %d; the first error: %s", n, text)
	h.Figures.AtMost("slow_readers_added_gap_p99_ms", quantile(beside.gaps, 0.99)-quantile(alone.gaps, 0.99), float64(addedGap.Milliseconds()),
		"time between events of %d streams beside: p50 %.2f and p99 %.2f, alone %.2f and %.2f", pacedAtOnce,
		quantile(beside.gaps, 0.5), quantile(beside.gaps, 0.99), quantile(alone.gaps, 0.5), quantile(alone.gaps, 0.99))
	return nil
}

// hardlyRead asks for a stream and reads next to nothing of it until readOn is closed, then all.
func hardlyRead(ctx context.Context, addr string, i int, readOn <-chan struct{}) error {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	r := chat("", fmt.Sprintf("%d: tell %x", i, rand.Uint64()), slowTokens)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: mesh\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", r.path, len(r.body), r.body)
	if err != nil {
		return err
	}
	var got bytes.Buffer
	piece := make([]byte, 100)
	for hanging := true; hanging; {
		n, err := conn.Read(piece)
		if got.Write(piece[:n]); err != nil {
			return fmt.Errorf("after %d bytes: %w: %.300s", got.Len(), err, got.Bytes())
		}
		select {
		case <-readOn:
			hanging = false
		case <-time.After(time.Second):
		}
	}
	if _, err := got.ReadFrom(conn); err != nil {
		return fmt.Errorf("after %d bytes: %w", got.Len(), err)
	}
	if !bytes.Contains(got.Bytes(), []byte("data: [DONE]")) {
		return fmt.Errorf("no [DONE] after %d bytes: %.300s", got.Len(), got.Bytes())
	}
	return nil
}

// manyBodies sends images of 20 MB, all at once. An agent takes as many as its budget allows; the others try again when they
// are told to.
func manyBodies(ctx context.Context, h *check.Harness, m *lab.Mesh, watch *rssWatch) error {
	n := largeBodies
	if h.Short {
		n /= 5
	}
	image := make([]byte, largeBytes*3/4)
	for i := range image {
		image[i] = byte(rand.Uint32())
	}
	data := "data:image/png;base64," + base64.StdEncoding.EncodeToString(image)
	r := newRequest(chatPath, fields{"max_tokens": 5, "messages": []any{map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "image_url", "image_url": map[string]string{"url": data}}, map[string]string{"type": "text", "text": "What is it?"},
	}}}})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	refused := 0
	begin := time.Now()
	client := newClient()
	for range n {
		wg.Go(func() {
			again, err := r.sendUntilTaken(ctx, client, m.Agents[0].HTTP)
			mu.Lock()
			defer mu.Unlock()
			if refused += again; err != nil {
				errs = append(errs, err)
			}
		})
	}
	var direct paced
	directEnded := make(chan error, 1)
	go func() {
		var err error
		direct, err = playPaced(ctx, m.Agents[1].Engine, pacedAtOnce, 200)
		directEnded <- err
	}()
	beside, err := playUnhurried(ctx, m, m.Agents[0].HTTP)
	if err := errors.Join(err, <-directEnded); err != nil {
		return err
	}
	wg.Wait()
	took := time.Since(begin)
	h.Figures.AtMost("large_bodies_added_gap_p99_ms", quantile(beside.gaps, 0.99)-quantile(direct.gaps, 0.99), float64(addedGapOfBodies.Milliseconds()),
		"time between events of %d streams beside: p50 %.2f and p99 %.2f; of as many of the engine itself, at the same time: %.2f and %.2f", pacedAtOnce,
		quantile(beside.gaps, 0.5), quantile(beside.gaps, 0.99), quantile(direct.gaps, 0.5), quantile(direct.gaps, 0.99))
	watch.report(h, "large_bodies", "%d bodies of %d bytes at once, %.1f s", n, len(r.body), took.Seconds())
	h.Figures.Zero("large_bodies_failed", float64(len(errs)), "of %d; %d were told to come back first; %s", n, refused, first(errs))
	return nil
}

// sendUntilTaken sends a request again each time that it is told to come back, as the SDKs do, if with more patience.
func (r *request) sendUntilTaken(ctx context.Context, client *http.Client, addr string) (refused int, err error) {
	for {
		_, err := r.send(ctx, client, addr)
		busy, ok := errors.AsType[*statusError](err)
		seconds, bad := strconv.Atoi(retryAfterOf(busy, ok))
		if err == nil || bad != nil {
			return refused, err
		}
		refused++
		select {
		case <-time.After(time.Duration(seconds)*time.Second + rand.N(time.Second)):
		case <-ctx.Done():
			return refused, ctx.Err()
		}
	}
}

// retryAfterOf is "" where nothing says that a request may come again.
func retryAfterOf(busy *statusError, ok bool) string {
	if !ok || busy.status != http.StatusServiceUnavailable && busy.status != http.StatusTooManyRequests {
		return ""
	}
	return busy.retryAfter
}

// rssWatch looks at the resident memory of the agents, again and again.
type rssWatch struct {
	m    *lab.Mesh
	stop func()

	mu   sync.Mutex
	most []float64 // MiB, by agent, since the last report
}

func watchRSS(ctx context.Context, m *lab.Mesh) *rssWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &rssWatch{m: m, most: make([]float64, len(m.Agents))}
	ended := make(chan struct{})
	w.stop = func() {
		cancel()
		<-ended
	}
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			w.look()
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return w
}

func (w *rssWatch) look() []float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var now []float64
	for i, a := range w.m.Agents {
		mib := residentMiB(a.Process.PID())
		w.most[i] = max(w.most[i], mib)
		now = append(now, mib)
	}
	return now
}

func (w *rssWatch) now() string {
	now := w.look()
	return fmt.Sprintf("%.0f MiB at the ingress, %.0f at the owner", now[0], now[1])
}

// report adds the figures of what was seen since the last.
func (w *rssWatch) report(h *check.Harness, name, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, at := range []string{"ingress", "owner"} {
		h.Figures.AtMost(name+"_rss_mib_"+at, w.most[i], memoryLimit>>20, "its memory limit; "+format, args...)
		w.most[i] = 0
	}
}

// residentMiB returns the resident memory of a process; 0 when it is gone.
func residentMiB(pid int) float64 {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := bytes.Fields(statm)
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}
