package forward

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

func exampleCall() *call {
	return &call{
		Engine: "gpu0", Generation: 77, ID: "id-1", Method: http.MethodPost, Path: "/v1/chat/completions?x=1",
		Header:        http.Header{"Content-Type": {"application/json"}, "Traceparent": {"a", "b"}},
		Prompt:        cachestate.Prompt{Keys: []cachestate.Key{1, 1 << 63, 3}, Offsets: []uint32{0, 512, 70000}, Odd: []uint32{0, 100, 20000}, High: []uint32{0, 0, 3}, Bytes: 70123, Sure: 2, Turn: cachestate.TurnTools},
		QueuedAtProbe: 0.25, Second: true, Forced: true, Once: true, Media: true, BodySize: 4096,
		Traits: openai.TraitStream | openai.TraitOddNames, Model: "m", Salt: "s", LoRA: "l",
		Left: 90*time.Second + time.Microsecond, Class: "chat", Priority: -100, Hops: 1,
	}
}

var ignoreScratch = cmp.FilterPath(func(p cmp.Path) bool {
	name := p.Last().String()
	return len(name) > 1 && name[0] == '.' && name[1] >= 'a' && name[1] <= 'z'
}, cmp.Ignore())

func TestCallSurvivesTheWire(t *testing.T) {
	for i, queued := range []float64{0.25, 0, -1} {
		want := exampleCall()
		want.QueuedAtProbe = queued
		if next := exampleCall().Prompt; i > 0 {
			next.Keys[1], next.Alike = 5, i > 1
			want.Prompt.Next = &next
		}
		got, err := parseCall(append(appendCall(want), "later fields"...), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, ignoreScratch); diff != "" {
			t.Errorf("call differs (-want +got):\n%s", diff)
		}
	}
}

// Before a prompt could have two forms, a call ended with its LoRA; before it had terms, with the second form.
func TestCallOfAnEarlierVersionIsRead(t *testing.T) {
	want := exampleCall()
	b := appendCall(want)
	want.Left, want.Class, want.Priority, want.Hops = 0, "", 0, 0
	b = b[:len(b)-len(appendTerms(nil, exampleCall()))]
	for range 2 {
		got, err := parseCall(b, 1<<20)
		if err != nil || cmp.Diff(want, got, ignoreScratch) != "" {
			t.Errorf("got %+v, %v", got, err)
		}
		b = b[:len(b)-len(appendPrompt(nil, &cachestate.Prompt{}))]
	}
}

func TestTimeBeyondTheWireIsCut(t *testing.T) {
	c := exampleCall()
	c.Left = math.MaxInt64
	got, err := parseCall(appendCall(c), 1<<20)
	if err != nil || got.Left != maxLeft*time.Microsecond {
		t.Errorf("got %v, %v", got.Left, err)
	}
}

func TestBoundaryBeyondThePromptIsRefused(t *testing.T) {
	c := exampleCall()
	c.Prompt.Bytes = 69_999
	if _, err := parseCall(appendCall(c), 1<<20); err == nil {
		t.Error("a boundary at 70,000 of 69,999 bytes passed")
	}
}

func TestOtherPayloadsSurviveTheWire(t *testing.T) {
	load := engine.Load{Seq: 9, QueuedSeconds: 1.5, InFlight: 3, Waiting: 1, KVUsage: 0.5, PrefillRate: 16000, BytesPerToken: 4.125}
	h := &head{Status: 429, Header: http.Header{"Retry-After": {"1"}}}
	if got, err := parseHead(appendHead(h)); err != nil || cmp.Diff(h, got) != "" {
		t.Errorf("head: %v %v", got, err)
	}
	v := verdict{Reason: "full", Load: load}
	if got, err := parseVerdict(appendVerdict(v)); err != nil || got != v {
		t.Errorf("verdict: %+v %v, want %+v", got, err, v)
	}
	e := ending{Usage: openai.Usage{PromptTokens: 5, CompletionTokens: 6, CachedTokens: 4, HasCached: true}, HasUsage: true, Load: load}
	for _, e.Trailer = range []http.Header{nil, {"X-Checksum": {"a", "b"}}} {
		if got, err := parseEnding(appendEnding(e)); err != nil || cmp.Diff(e, got) != "" {
			t.Errorf("ending: %+v %v, want %+v", got, err, e)
		}
	}
	r := Report{Period: 500 * time.Millisecond, Loads: []EngineLoad{{"a", load}, {"b", engine.Load{}}}}
	if got, err := ParseReport(AppendReport(nil, r)); err != nil || cmp.Diff(r, got) != "" {
		t.Errorf("report: %+v %v, want %+v", got, err, r)
	}
}

func TestBodyAboveTheLimitIsRefusedBeforeItIsRead(t *testing.T) {
	if _, err := parseCall(appendCall(exampleCall()), 4095); err == nil {
		t.Error("a body of 4,096 bytes passed a limit of 4,095")
	}
}

func TestFramesComeBackInOrder(t *testing.T) {
	var buf bytes.Buffer
	w := newFrameWriter(&buf)
	payloads := [][]byte{nil, []byte("x"), bytes.Repeat([]byte("y"), 100_000)}
	for i, p := range payloads {
		if err := w.write(frameType(i+1), p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	r := newFrameReader(&buf)
	for i, want := range payloads {
		if typ, got, err := r.read(); err != nil || typ != frameType(i+1) || !bytes.Equal(got, want) {
			t.Errorf("frame %d: got type %d, %d bytes, %v", i, typ, len(got), err)
		}
	}
	if _, _, err := r.read(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v, want EOF", err)
	}
}

func TestHugeFrameIsRefusedBeforeItIsAllocated(t *testing.T) {
	r := newFrameReader(bytes.NewReader([]byte{byte(frameData), 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}))
	if _, _, err := r.read(); !errors.Is(err, errFrameTooLarge) {
		t.Errorf("got %v, want errFrameTooLarge", err)
	}
}

func FuzzFrames(f *testing.F) {
	var buf bytes.Buffer
	w := newFrameWriter(&buf)
	_ = w.write(frameRequest, appendCall(exampleCall()))
	both := exampleCall()
	both.Prompt.Next = &cachestate.Prompt{Keys: both.Prompt.Keys, Offsets: both.Prompt.Offsets, Odd: both.Prompt.Odd, High: both.Prompt.High, Bytes: 70123, Alike: true}
	_ = w.write(frameRequest, appendCall(both))
	_ = w.write(frameHead, appendHead(&head{Status: 200, Header: http.Header{"A": {"b"}}}))
	_ = w.write(frameBounce, appendVerdict(verdict{Reason: "full"}))
	_ = w.write(frameEnd, appendEnding(ending{}))
	_ = w.write(frameEnd, appendEnding(ending{Trailer: http.Header{"A": {"b"}}}))
	_ = w.flush()
	f.Add(buf.Bytes())
	f.Add(AppendReport(nil, Report{Period: time.Second, Loads: []EngineLoad{{"a", engine.Load{}}}}))
	f.Add(AppendReport(nil, Report{Period: time.Second, Loads: []EngineLoad{{"a", impossible}, {"b", engine.Load{}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newFrameReader(bytes.NewReader(b))
		for {
			_, payload, err := r.read()
			if err != nil {
				break
			}
			if c, err := parseCall(payload, 1<<20); err == nil && len(c.Prompt.Keys) != len(c.Prompt.Offsets) {
				t.Fatalf("%d keys, %d offsets", len(c.Prompt.Keys), len(c.Prompt.Offsets))
			}
			_, _ = parseHead(payload)
			_, _ = parseVerdict(payload)
			_, _ = parseEnding(payload)
		}
		if report, err := ParseReport(b); err == nil && len(report.Loads)+len(report.Doubts) > maxEngines {
			t.Fatalf("%d loads and %d doubts", len(report.Loads), len(report.Doubts))
		}
	})
}
