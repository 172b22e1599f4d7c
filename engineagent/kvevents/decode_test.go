package kvevents

import (
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

// golden returns the vectors of testdata/golden.txt: batches as SGLang's own tests have them, and others derived from the
// wire forms of each release.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(name, err)
		}
		out[name] = b
	}
	return out
}

// describe writes a batch in one line, to compare with.
func describe(b *Batch) string {
	var s strings.Builder
	rank := "nil"
	if b.HasRank {
		rank = fmt.Sprint(b.Rank)
	}
	fmt.Fprintf(&s, "%v rank %s", b.Time, rank)
	for _, e := range b.Events {
		s.WriteString("; " + describeEvent(&e))
		if e.Kind == cachestate.BlocksStored {
			fmt.Fprintf(&s, " window %d", e.Window)
			if e.Extras != nil {
				fmt.Fprintf(&s, " extras %x", e.Extras)
			}
		}
	}
	return s.String()
}

// describeEvent writes one event.
func describeEvent(e *cachestate.BlockEvent) string {
	switch e.Kind {
	case cachestate.BlocksCleared:
		return "cleared"
	case cachestate.BlocksRemoved:
		return fmt.Sprintf("removed %d %v group %d", e.Hashes, e.Tier, e.Group)
	case cachestate.BlocksStored:
	}
	after := ""
	if e.HasParent {
		after = fmt.Sprintf(" after %d", e.Parent)
	}
	return fmt.Sprintf("stored %d%s tokens %d of %d %v group %d kind %d", e.Hashes, after, e.Tokens, e.BlockTokens, e.Tier,
		e.Group, e.GroupKind)
}

func TestGoldenVectors(t *testing.T) {
	const big = "15760518052499183552"
	extra := func(parts ...string) string { return fmt.Sprintf("%x", []uint64{cachestate.BlockExtra(parts...)}) }
	want := map[string]string{
		"full": "123.456 rank 2; stored [1234567890123 18446744072721897295] after 42 tokens [10 20 30 40] of 4 gpu " +
			"group 0 kind 0 window 0",
		"nil-opts": "0 rank nil; stored [1 2 3] tokens [5 6] of 16 gpu group 0 kind 0 window 0",
		"removed":  "1 rank 0; removed [100 200] disk group 0",
		"cleared":  "2 rank nil; cleared",
		"mixed": "99 rank 3; stored [10] after 1 tokens [1 2] of 2 gpu group 0 kind 0 window 0; removed [20] gpu group 0; " +
			"cleared",
		"M1": "1 rank 0; stored [" + big + "] tokens [1 2 3 4] of 4 gpu group 0 kind 0 window 0 extras [0]",
		"M2": "2 rank 1; removed [" + big + "] gpu group 0",
		"M3": "3 rank 0; cleared",
		"M4": "4 rank 0; stored [1736447835066146335] after 12370169555311111083 tokens [7 8] of 2 gpu group 1 kind 1 " +
			"window 128 extras " + extra("ad", "img\x00-1", "salt"),
		"M5": "5 rank 0; stored [9] tokens [] of 0 cpu group 0 kind 0 window 0",
		"A1": "1 rank 0; stored [" + big + "] tokens [1 2 3 4] of 4 gpu group 0 kind 0 window 0 extras [0]",
		"A2": "1 rank 0; stored [" + big + "] tokens [1 2 3 4] of 4 gpu group 0 kind 0 window 0 extras [0]",
		"A3": "1 rank 0; stored [" + big + "] tokens [1 2 3 4] of 4 gpu group 0 kind 0 window 0",
		"A4": "1 rank 0; stored [18446744073709551614] tokens [1 2] of 2 gpu group 0 kind 0 window 0 extras " +
			extra("tenant-a"),
		"S1": "1 rank 0; stored [18446744073709551614] tokens [1 2] of 2 cpu group 0 kind 0 window 0 extras " +
			extra("tenant-a"),
	}
	var d Decoder
	var b Batch
	for name, payload := range golden(t) {
		if err := d.Decode(payload, &b); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b.Skipped != 0 {
			t.Errorf("%s: %d events skipped", name, b.Skipped)
		}
		if got := describe(&b); got != want[name] {
			t.Errorf("%s:\n got  %s\n want %s", name, got, want[name])
		}
	}
	if len(want) != len(golden(t)) {
		t.Errorf("%d vectors, %d expectations", len(golden(t)), len(want))
	}
}

func TestShowsExtras(t *testing.T) {
	want := map[string]bool{"M1": true, "A1": true, "A2": true, "A4": true, "S1": true}
	vectors := golden(t)
	var d Decoder
	var b Batch
	for _, name := range []string{"full", "M1", "A1", "A2", "A3", "A4", "S1"} {
		if err := d.Decode(vectors[name], &b); err != nil {
			t.Fatal(err)
		}
		if b.Events[0].ShowsExtras != want[name] {
			t.Errorf("%s: shows extras %v", name, b.Events[0].ShowsExtras)
		}
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	var d Decoder
	var b Batch
	for name, payload := range golden(t) {
		if name == "M4" || name == "A4" || name == "S1" { // extras are rare, and hashed as text
			continue
		}
		decode := func() {
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
		}
		decode()
		if n := testing.AllocsPerRun(100, decode); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzDecode: nothing that comes from an engine may do worse than an error, and what is read again reads the same.
func FuzzDecode(f *testing.F) {
	for _, payload := range golden(f) {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d, again Decoder
		var b, c Batch
		if d.Decode(payload, &b) != nil {
			return
		}
		tokens := 0
		for _, e := range b.Events {
			tokens += len(e.Tokens) + len(e.Hashes)
		}
		if tokens > len(payload) {
			t.Fatalf("%d tokens and hashes out of %d bytes", tokens, len(payload))
		}
		if err := again.Decode(payload, &c); err != nil || !reflect.DeepEqual(b.Events, c.Events) {
			t.Fatalf("decoded otherwise the second time: %v", err)
		}
	})
}
