package workload

import (
	"bytes"
	"compress/gzip"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const twoLines = `{"timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}
`

var twoRequests = Trace{BlockTokens: 512, Requests: []TraceRequest{
	{At: 0, InputTokens: 1200, OutputTokens: 50, Blocks: []BlockRun{{0, 3}}},
	{At: 3 * time.Second, InputTokens: 600, OutputTokens: 7, Blocks: []BlockRun{{0, 1}, {9, 1}}},
}}

func TestMooncakeIsReadPlainAndPacked(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(twoLines)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{"plain": twoLines, "gzip": packed.String(), "blank line": twoLines + "\n"} {
		got, err := ReadMooncake(strings.NewReader(in))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(twoRequests, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestBadTracesAreRefusedWithTheirLine(t *testing.T) {
	tests := map[string]string{
		"no JSON":           "{",
		"negative time":     `{"timestamp":-1,"input_length":1,"hash_ids":[1]}`,
		"time of centuries": `{"timestamp":9000000000000000,"input_length":1,"hash_ids":[1]}`,
		"no input":          `{"timestamp":0,"input_length":0,"hash_ids":[]}`,
		"huge input":        `{"timestamp":0,"input_length":99999999,"hash_ids":[1]}`,
		"negative output":   `{"timestamp":0,"input_length":1,"output_length":-1,"hash_ids":[1]}`,
		"blocks missing":    `{"timestamp":0,"input_length":513,"hash_ids":[1]}`,
		"time goes back":    "{\"timestamp\":9,\"input_length\":1,\"hash_ids\":[1]}\n{\"timestamp\":8,\"input_length\":1,\"hash_ids\":[1]}",
	}
	for name, in := range tests {
		if _, err := ReadMooncake(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: error %v, want one that names the line", name, err)
		}
	}
}

func TestEndlessLineIsRefused(t *testing.T) {
	in := strings.Repeat(" ", maxLineBytes+1)
	if _, err := ReadMooncake(strings.NewReader(in)); err == nil {
		t.Error("a line above the limit has no error")
	}
}

func TestCutGzipIsRefused(t *testing.T) {
	if _, err := ReadMooncake(strings.NewReader("\x1f\x8b\x08\x00")); err == nil {
		t.Error("a cut gzip header has no error")
	}
}

func TestConversationSliceIsWhole(t *testing.T) {
	got, err := ConversationSlice()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Requests) != 2000 {
		t.Errorf("slice has %d requests, want 2000", len(got.Requests))
	}
	if reuse := got.IdealReuse(); math.Abs(reuse-0.294) > 0.001 {
		t.Errorf("ideal reuse of the slice is %.3f, want 0.294", reuse)
	}
}

func TestJitterSpreadsAQuantumAndKeepsOrder(t *testing.T) {
	trace := Trace{Requests: make([]TraceRequest, 1000)}
	trace.Jitter(3*time.Second, newRand(1, 1))
	ascending := slices.IsSortedFunc(trace.Requests, func(a, b TraceRequest) int { return int(a.At - b.At) })
	if !ascending {
		t.Error("requests are out of order")
	}
	first, last := trace.Requests[0].At, trace.Requests[999].At
	if first < 0 || last >= 3*time.Second || last-first < 2900*time.Millisecond {
		t.Errorf("1000 requests lie from %v to %v, want all of 3 s", first, last)
	}
}

func TestIdealReuseEndsAtTheFirstUnknownBlock(t *testing.T) {
	trace := Trace{BlockTokens: 10, Requests: []TraceRequest{
		{InputTokens: 30, Blocks: []BlockRun{{1, 3}}},
		{InputTokens: 30, Blocks: []BlockRun{{1, 1}, {9, 1}, {3, 1}}},
	}}
	if got, want := trace.IdealReuse(), 10.0/60; got != want {
		t.Errorf("IdealReuse = %v, want %v", got, want)
	}
}

func FuzzReadMooncake(f *testing.F) {
	f.Add([]byte(twoLines))
	f.Fuzz(func(t *testing.T, in []byte) {
		trace, err := ReadMooncake(bytes.NewReader(in))
		if err != nil {
			return
		}
		for i, r := range trace.Requests {
			if i > 0 && r.At < trace.Requests[i-1].At {
				t.Errorf("request %d goes back in time", i)
			}
			n := 0
			for range r.BlockIDs() {
				n++
			}
			if n != (r.InputTokens+511)/512 {
				t.Errorf("request %d of %d tokens has %d blocks", i, r.InputTokens, n)
			}
		}
		if u := trace.IdealReuse(); u < 0 || u > 1 {
			t.Errorf("IdealReuse = %v", u)
		}
	})
}
