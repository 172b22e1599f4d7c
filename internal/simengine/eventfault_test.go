package simengine

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stored makes the engine publish one batch.
func (r *rig) stored(first int) {
	r.t.Helper()
	if status, body := r.post("/v1/completions", tinyRequest(first, 33, 1)); status != http.StatusOK {
		r.t.Fatalf("%d %s", status, body)
	}
}

func (r *rig) fault(body string) {
	r.t.Helper()
	if status, got := r.post("/sim/faults", body); status != http.StatusOK {
		r.t.Fatalf("POST /sim/faults %s = %d %s", body, status, got)
	}
}

// replayed is what a replay from the beginning gives: sequence numbers.
func replayed(t *testing.T, replay *memNet) string {
	t.Helper()
	dealer := follow(t, replay, "DEALER")
	dealer.send(nil, seqFrame(0))
	var seqs []uint64
	for {
		m := dealer.next()
		if len(m[len(m)-1]) == 0 {
			return fmt.Sprint(seqs)
		}
		seqs = append(seqs, readBatch(t, m[len(m)-2], m[len(m)-1]).seq)
	}
}

func TestEventFaults(t *testing.T) {
	tests := []struct {
		name     string
		script   func(r *rig)
		seen     string // sequence numbers that a subscriber gets
		replayed string
	}{
		{
			name:   "none",
			script: func(r *rig) { r.stored(0); r.stored(1000) },
			seen:   "[0 1 99]", replayed: "[0 1 99]",
		}, {
			name: "two lost",
			script: func(r *rig) {
				r.stored(0)
				r.fault(`{"lose_batches":2}`)
				r.stored(1000)
				r.stored(2000)
				r.stored(3000)
			},
			seen: "[0 3 99]", replayed: "[0 1 2 3 99]",
		}, {
			name:   "one lost for good",
			script: func(r *rig) { r.LoseBatches(1, true); r.stored(0); r.stored(1000) },
			seen:   "[1 99]", replayed: "[1 99]",
		}, {
			name:   "loss called off",
			script: func(r *rig) { r.LoseBatches(5, true); r.stored(0); r.fault(`{}`); r.stored(1000) },
			seen:   "[1 99]", replayed: "[1 99]",
		}, {
			name:   "repeated",
			script: func(r *rig) { r.RepeatBatch(); r.stored(0); r.stored(1000); r.fault(`{"repeat_batch":true}`) },
			seen:   "[0 1 1 99]", replayed: "[0 1 99]",
		}, {
			name:   "swapped once",
			script: func(r *rig) { r.fault(`{"swap_batches":true}`); r.stored(0); r.stored(1000); r.stored(2000) },
			seen:   "[1 0 2 99]", replayed: "[0 1 2 99]",
		}, {
			name:   "swapped then repeated",
			script: func(r *rig) { r.SwapBatches(); r.stored(0); r.stored(1000); r.RepeatBatch() },
			seen:   "[1 0 0 99]", replayed: "[0 1 99]",
		}, {
			name:   "lost between the swapped",
			script: func(r *rig) { r.SwapBatches(); r.stored(0); r.LoseBatches(1, false); r.stored(1000); r.stored(2000) },
			seen:   "[2 0 99]", replayed: "[0 1 2 99]",
		}, {
			name:   "swap called off",
			script: func(r *rig) { r.SwapBatches(); r.stored(0); r.fault(`{"slow":1}`) },
			seen:   "[0 99]", replayed: "[0 99]",
		}, {
			name:   "replay forgotten",
			script: func(r *rig) { r.stored(0); r.stored(1000); r.fault(`{"forget_replay":true}`); r.stored(2000) },
			seen:   "[0 1 2 99]", replayed: "[2 99]",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, pub, replay := eventRig(t, func(c *Config) { c.KVEvents.BufferSteps = 5 })
				sub := follow(t, pub, "SUB")
				sub.send([]byte{1})
				synctest.Wait()
				tt.script(r)
				r.events.mu.Lock()
				r.events.next = 99 // the last batch, by which the subscriber knows the end
				r.events.mu.Unlock()
				r.stored(50_000)
				var seqs []uint64
				for len(seqs) == 0 || seqs[len(seqs)-1] != 99 {
					seqs = append(seqs, sub.batch().seq)
				}
				if got := fmt.Sprint(seqs); got != tt.seen {
					t.Errorf("subscriber got %s, want %s", got, tt.seen)
				}
				if got := replayed(t, replay); got != tt.replayed {
					t.Errorf("replayed %s, want %s", got, tt.replayed)
				}
			})
		})
	}
}

func TestCutEventsClosesConnectionsForATimeWhileBatchesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, replay := eventRig(t, nil)
		sub, dealer := follow(t, pub, "SUB"), follow(t, replay, "DEALER")
		sub.send([]byte{1})
		synctest.Wait()
		r.fault(`{"cut_ms":2000}`)
		for _, f := range []*follower{sub, dealer} {
			if m, err := f.conn.message(nil); err == nil {
				t.Errorf("cut connection gave %q", m)
			}
		}
		r.stored(0)
		for _, n := range []*memNet{pub, replay} {
			conn, err := n.dial()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := openZMTP(conn, "SUB"); err == nil {
				t.Error("a connection was let in during the cut")
			}
		}
		time.Sleep(2 * time.Second)
		if got := replayed(t, replay); got != "[0]" {
			t.Errorf("replayed %s after the cut, want the batch that it hid", got)
		}
		r.CutEvents(time.Hour)
		r.fault(`{}`)
		follow(t, pub, "SUB")
	})
}

func TestRestartIsANewProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, replay := eventRig(t, func(c *Config) { c.Seed = 0 })
		sub := follow(t, pub, "SUB")
		sub.send([]byte{1})
		synctest.Wait()
		r.stored(0)
		before := r.Stats()
		hash := hashesOf(t, sub.next())
		running := r.open(t.Context(), "POST", "/v1/chat/completions", chat(400, `,"stream":true,"max_tokens":1000,"ignore_eos":true`))
		time.Sleep(time.Minute / 60)
		started := metric(t, r, "process_start_time_seconds")

		r.post("/sim/restart", "")
		synctest.Wait()
		if _, err := sub.conn.message(nil); err == nil {
			t.Error("the connection for KV events is still open")
		}
		if ev := readEvents(t, running.Body); len(ev) > 0 && ev[len(ev)-1].data == "[DONE]" {
			t.Error("the running request ended as if nothing had happened")
		}
		if got := replayed(t, replay); got != "[]" {
			t.Errorf("replayed %s, want nothing", got)
		}
		got := r.Stats()
		if diff := cmp.Diff(Stats{Restarts: 1, TotalBlocks: before.TotalBlocks}, got); diff != "" {
			t.Errorf("stats of the new process (-want +got):\n%s", diff)
		}
		if now := metric(t, r, "process_start_time_seconds"); now <= started {
			t.Errorf("start time %v, was %v", now, started)
		}
		sub = follow(t, pub, "SUB")
		sub.send([]byte{1})
		synctest.Wait()
		r.stored(0)
		m := sub.next()
		if b := readBatch(t, m[1], m[2]); b.seq != 0 || b.events[0] != "BlockStored 2" {
			t.Errorf("first batch %v, want the same blocks stored again under number 0", b)
		}
		if hashesOf(t, m) == hash {
			t.Error("the new process hashes as the old one")
		}
	})
}

func TestRestartWithASeedHashesAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replay := eventRig(t, nil) // a seed is set
		hashes := func() string {
			r.stored(0)
			dealer := follow(t, replay, "DEALER")
			dealer.send(nil, seqFrame(0))
			return hashesOf(t, dealer.next())
		}
		before := hashes()
		r.Restart()
		synctest.Wait() // the client notices
		if after := hashes(); after != before {
			t.Errorf("hashes %s after the restart, %s before", after, before)
		}
	})
}

func TestRestartResetsEveryRequestAndOldStepsStayUntold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replay := eventRig(t, func(c *Config) { c.MaxRunning = 1 })
		errs := make([]error, 2)
		for i, body := range []string{chat(40_000, `,"stream":true`), chat(4000, `,"stream":false`)} {
			r.posts.Go(func() {
				resp, err := r.client.Post("http://engine/v1/chat/completions", "application/json", strings.NewReader(body))
				if err == nil {
					_, err = readAll(resp)
				}
				errs[i] = err
			})
			synctest.Wait()
		}
		r.Restart()
		synctest.Wait() // the client notices
		r.posts.Wait()
		for _, err := range errs {
			if err == nil {
				t.Error("a request of the old process was answered")
			}
		}
		time.Sleep(time.Hour)
		if s := r.Stats(); s.ResidentBlocks != 0 || s.EventBatches != 0 || replayed(t, replay) != "[]" {
			t.Errorf("the old process still acts: %+v", s)
		}
	})
}

func TestStepsOfAnOldProcessAreNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replay := eventRig(t, nil)
		r.Restart()
		synctest.Wait()
		r.events.publish(0, time.Now(), []kvEvent{{kind: eventCleared}})
		if got := replayed(t, replay); got != "[]" {
			t.Errorf("replayed %s", got)
		}
	})
}

func TestRestartEndsRequestsThatHang(t *testing.T) {
	for _, f := range []string{`{"hang":true}`, `{"hang_after_headers":true}`} {
		inBubble(t, nil, func(t *testing.T, r *rig) {
			r.fault(f)
			done := make(chan error, 1)
			r.posts.Go(func() {
				resp, err := r.client.Post("http://engine/v1/chat/completions", "application/json",
					strings.NewReader(chat(40, `,"stream":true`)))
				if err == nil {
					_, err = readAll(resp)
				}
				done <- err
			})
			synctest.Wait()
			r.Restart()
			synctest.Wait() // the client notices
			if err := <-done; err == nil {
				t.Errorf("%s: the request was answered", f)
			}
		})
	}
}

func TestRestartClosesIdleConnections(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		reused := func() (reused bool) {
			trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
			resp := r.open(httptrace.WithClientTrace(t.Context(), trace), "GET", "/health", "")
			resp.Body.Close()
			synctest.Wait()
			return reused
		}
		reused()
		if !reused() {
			t.Fatal("no connection is kept between requests")
		}
		r.Restart()
		synctest.Wait()
		if reused() {
			t.Error("a connection outlived the process")
		}
	})
}
