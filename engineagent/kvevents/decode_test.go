package kvevents

import (
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvmesh/kvmesh/cachestate"
)

// vector is one entry of testdata/golden.txt.
type vector struct {
	name    string
	payload []byte
	want    string
}

// golden returns the vectors of testdata/golden.txt.
func golden(t testing.TB) (vectors []vector) {
	t.Helper()
	file, err := os.ReadFile("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(file)) {
		switch line = strings.TrimRight(line, "\n"); {
		case line == "" || line[0] == '#':
		case line[0] == '\t':
			vectors[len(vectors)-1].want = extras.ReplaceAllStringFunc(line[1:], extraWords)
		default:
			name, digits, _ := strings.Cut(line, " ")
			payload, err := hex.DecodeString(digits)
			if err != nil {
				t.Fatal(name, err)
			}
			vectors = append(vectors, vector{name: name, payload: payload})
		}
	}
	return vectors
}

var extras = regexp.MustCompile(`\{[^}]*\}`)

// extraWords returns the number that stands for the parts in braces.
func extraWords(braces string) string {
	parts := strings.Split(strings.ReplaceAll(braces[1:len(braces)-1], `\0`, "\x00"), ";")
	return fmt.Sprintf("%x", cachestate.BlockExtra(parts...))
}

// words writes a batch in one line, to compare with.
func words(b *Batch) string {
	var s strings.Builder
	fmt.Fprintf(&s, "at %v ", b.Time)
	if b.HasRank {
		fmt.Fprintf(&s, "rank %d", b.Rank)
	} else {
		s.WriteString("no rank")
	}
	for i := range b.Events {
		s.WriteString(" | " + eventWords(&b.Events[i]))
	}
	if b.Skipped > 0 {
		fmt.Fprintf(&s, " | %d skipped", b.Skipped)
	}
	if b.Unsure {
		s.WriteString(" | unsure")
	}
	if b.Remote > 0 {
		fmt.Fprintf(&s, " | %d remote", b.Remote)
	}
	return s.String()
}

func eventWords(e *cachestate.BlockEvent) string {
	var s strings.Builder
	switch e.Kind {
	case cachestate.BlocksCleared:
		return "cleared"
	case cachestate.BlocksRemoved:
		fmt.Fprintf(&s, "removed%s, %v, group %d", numbers(e.Hashes), e.Tier, e.Group)
		return s.String()
	case cachestate.BlocksStored:
	}
	fmt.Fprintf(&s, "stored%s", numbers(e.Hashes))
	if e.HasParent {
		fmt.Fprintf(&s, " after %d", e.Parent)
	}
	fmt.Fprintf(&s, ", tokens%s by %d, %v, group %d %s", numbers(e.Tokens), e.BlockTokens, e.Tier, e.Group,
		[]string{"full", "sliding", "mamba", "other"}[e.GroupKind])
	if e.Window != 0 {
		fmt.Fprintf(&s, " %d", e.Window)
	}
	switch {
	case e.ShowsExtras:
		s.WriteString(", shows extras")
	case len(e.Extras) > 0:
		s.WriteString(", extras")
	}
	for _, x := range e.Extras {
		fmt.Fprintf(&s, " %x", x)
	}
	return s.String()
}

func numbers[T any](list []T) string {
	if len(list) == 0 {
		return ""
	}
	return " " + strings.Trim(fmt.Sprint(list), "[]")
}

// decoded decodes a payload and returns it in words.
func decoded(t *testing.T, payload []byte) string {
	t.Helper()
	var d Decoder
	var b Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatalf("decode %x: %v", payload, err)
	}
	return words(&b)
}

func TestGoldenVectors(t *testing.T) {
	vectors := golden(t)
	if len(vectors) != 15 {
		t.Errorf("%d vectors", len(vectors))
	}
	var d Decoder // of all, since it reuses its memory
	var b Batch
	for _, v := range vectors {
		if err := d.Decode(v.payload, &b); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if got := words(&b); got != v.want {
			t.Errorf("%s:\n got  %s\n want %s", v.name, got, v.want)
		}
	}
}

func TestBatchCutShortIsAnError(t *testing.T) {
	for _, v := range golden(t) {
		for n := range v.payload {
			var d Decoder
			var b Batch
			if err := d.Decode(v.payload[:n], &b); err == nil {
				t.Errorf("%s: the first %d of %d bytes passed as %s", v.name, n, len(v.payload), words(&b))
			} else if len(b.Events) != 0 {
				t.Errorf("%s: the first %d bytes gave events and the error %v", v.name, n, err)
			}
		}
	}
}

func TestEventsKeepTheirMemoryWhileArenasGrow(t *testing.T) {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1)
	b = msgp.AppendArrayHeader(b, 300)
	for i := range 300 {
		b = sglangStored(i + 1)(b)
	}
	var d Decoder
	var batch Batch
	for range 2 {
		if err := d.Decode(b, &batch); err != nil {
			t.Fatal(err)
		}
		for i, e := range batch.Events {
			_ = append(e.Tokens, 1) // must not reach into the next event's
			n := len(e.Tokens)
			if n != i+1 || e.Tokens[0] != 100_000 || e.Tokens[i] != uint32(100_000+i) || e.BlockTokens != n {
				t.Fatalf("event %d is %s", i, eventWords(&e))
			}
		}
	}
}

func TestMemoryOfAHugeBatchIsNotKept(t *testing.T) {
	var d Decoder
	var b Batch
	if err := d.Decode(batchOf(1, sglangStored(1<<19)), &b); err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(batchOf(1, sglangStored(16)), &b); err != nil {
		t.Fatal(err)
	}
	if n := cap(d.tokens); n >= 1<<19 {
		t.Errorf("room for %d tokens is kept", n)
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	shapes := map[string][]byte{
		"sglang": batchOf(64, sglangStored(1)), "vllm": batchOf(64, vllmStored(16)), "removed": batchOf(64, sglangRemoved()),
	}
	for _, v := range golden(t) {
		if v.name != "M4" && v.name != "A4" && v.name != "S1" { // extras are rare, and hashed as text
			shapes[v.name] = v.payload
		}
	}
	for name, payload := range shapes {
		var d Decoder
		var b Batch
		decode := func() {
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
		}
		decode()
		decode()
		if n := testing.AllocsPerRun(100, decode); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
