package cachestate

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func sampleDelta() Delta {
	return Delta{
		Engine: "owner/gpu0", Tier: TierCPU, Generation: 1700000000, Geometry: DefaultGeometry(), From: 3, To: 5,
		Checksum: 0x0102030405060708, Keys: 77, Set: []uint32{0, 1, 500, 131071}, Clear: []uint32{2, 99999},
	}
}

func sampleFull(r *rand.Rand, ones int) Delta {
	d := sampleDelta()
	d.From, d.Set, d.Clear, d.Words = 0, nil, nil, make([]uint64, d.Geometry.words())
	for range ones {
		at := r.Uint32N(d.Geometry.Bits)
		d.Words[at/64] |= 1 << (at % 64)
	}
	return d
}

func TestDeltaRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	empty := sampleDelta()
	empty.From, empty.To, empty.Set, empty.Clear = 5, 5, nil, nil
	for name, d := range map[string]Delta{
		"lists": sampleDelta(), "empty": empty,
		"no bit": sampleFull(r, 0), "few bits": sampleFull(r, 300), "a quarter": sampleFull(r, 40_000), "most": sampleFull(r, 300_000),
	} {
		b := AppendDelta([]byte("x"), &d)
		got, rest, err := ParseDelta(append(b, "rest"...)[1:], "owner", d.Geometry)
		if err != nil || string(rest) != "rest" {
			t.Errorf("%s: got rest %q, error %v", name, rest, err)
		}
		if diff := cmp.Diff(d, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Delta{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDeltaRoundTripOfRandomLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := sampleDelta()
		d.Geometry.Bits = 1 << rapid.IntRange(6, 24).Draw(t, "bits")
		flips := rapid.SliceOfNDistinct(rapid.Uint32Range(0, d.Geometry.Bits-1), 0, 60, rapid.ID).Draw(t, "flips")
		n := rapid.IntRange(0, len(flips)).Draw(t, "set")
		d.Set, d.Clear = sorted(flips[:n]), sorted(flips[n:])
		b := AppendDelta(nil, &d)
		got, rest, err := ParseDelta(b, "owner", d.Geometry)
		if err != nil || len(rest) > 0 {
			t.Fatalf("got rest %x, error %v", rest, err)
		}
		if diff := cmp.Diff(d, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Delta{})); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		body := listBytes(d.Set, d.Geometry.Bits) + listBytes(d.Clear, d.Geometry.Bits)
		d.Set, d.Clear = nil, nil
		empty := listBytes(nil, d.Geometry.Bits) * 2
		if head := len(appendFields(nil, &d)) - empty; len(b) != uvarintBytes(uint64(head+body))+head+body {
			t.Fatalf("got %d bytes, predicted %d + %d", len(b), head, body)
		}
	})
}

func TestWholeDigestTakesTheShorterForm(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, tt := range []struct{ ones, most int }{{0, 50}, {300, 500}, {40_000, 15_000}, {300_000, 16_500}} {
		d := sampleFull(r, tt.ones)
		if n := len(AppendDelta(nil, &d)); n > tt.most {
			t.Errorf("%d bits drawn: got %d bytes, want at most %d", tt.ones, n, tt.most)
		}
	}
}

func TestParseDeltaRefuses(t *testing.T) {
	change := func(f func(*Delta)) []byte {
		d := sampleDelta()
		f(&d)
		return AppendDelta(nil, &d)
	}
	good := change(func(*Delta) {})
	sample := sampleDelta()
	keyBothWays := appendKeys([]byte{bodyKeys}, sample.Geometry, []keyBits{sample.Geometry.keyBitsOf(77)}, false)
	keyBothWays = appendKeys(keyBothWays, sample.Geometry, []keyBits{sample.Geometry.keyBitsOf(77)}, true)
	fields, head := fieldsOf(t, good), fieldsOf(t, sized(appendHead(nil, &sample)))
	tests := map[string]struct {
		b    []byte
		want string
	}{
		"nothing":          {nil, "truncated"},
		"nothing but size": {[]byte{0}, "truncated"},
		"size of a liar":   {binary.AppendUvarint(nil, math.MaxUint64), "above the limit"},
		"unknown tier":     {change(func(d *Delta) { d.Tier = 7 }), "unknown tier7"},
		"no hashes":        {change(func(d *Delta) { d.Geometry.Hashes = 0 }), "and 0 hashes in a mesh"},
		"huge digest":      {change(func(d *Delta) { d.Geometry.Bits = 1 << 31 }), "2147483648 bits"},
		"backwards":        {change(func(d *Delta) { d.From, d.To = 5, 3 }), "from version"},
		"unmoved":          {change(func(d *Delta) { d.From = d.To }), "stays"},
		"twice":            {change(func(d *Delta) { d.Clear = []uint32{500} }), "both set and cleared"},
		"beyond the end":   {change(func(d *Delta) { d.Set[3] = d.Geometry.Bits }), "beyond"},
		"cut":              {good[:len(good)-1], "truncated"},
		"cut inside":       {sized(fields[:len(fields)-1]), "truncated"},
		"codes cut":        {sized(fields[:len(fields)-6], []byte{4}, fields[len(fields)-5:len(fields)-1]), "codes do not fit"},
		"words cut":        {sized(head, []byte{bodyWords, 1, 2, 3}), "truncated"},
		"unknown body":     {sized(head, []byte{9}), "unknown body"},
		"count of a liar":  {sized(head, []byte{bodyList, 0x80, 0x80, 0x04, 0, 1, 0}), "codes do not fit"},
		"keys of a liar":   {sized(head, []byte{bodyKeys, 0x80, 0x80, 0x04, 0, 1, 0}), "codes do not fit"},
		"key beyond":       {sized(head, []byte{bodyKeys, 1, 16, 5, 0xc0, 0, 0, 0, 0, 0, 0, 0}), "codes do not fit"},
		"key twice":        {sized(head, keyBothWays), "both set and cleared"},
		"unary to the end": {sized(head, []byte{bodyList, 1, 0, 2, 0xff, 0xff}), "codes do not fit"},
	}
	for name, tt := range tests {
		_, _, err := ParseDelta(tt.b, "owner", DefaultGeometry())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// A newer version says more behind what is known here.
func TestFieldsOfANewerVersionAreSkipped(t *testing.T) {
	d := sampleDelta()
	newer := sized(fieldsOf(t, AppendDelta(nil, &d)), []byte("more"))
	got, rest, err := ParseDelta(append(newer, "rest"...), "owner", d.Geometry)
	if err != nil || string(rest) != "rest" {
		t.Errorf("got rest %q, error %v", rest, err)
	}
	if diff := cmp.Diff(d, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Delta{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// sized puts the size of the fields in front of them.
func sized(fields ...[]byte) []byte {
	b := slices.Concat(fields...)
	return append(binary.AppendUvarint(nil, uint64(len(b))), b...)
}

// fieldsOf returns an encoded delta without its size.
func fieldsOf(t *testing.T, b []byte) []byte {
	t.Helper()
	r := engine.NewReader(b)
	fields := r.Bytes(math.MaxInt32)
	if r.Err() != nil || len(r.Rest()) > 0 {
		t.Fatalf("got %d bytes behind the delta, error %v", len(r.Rest()), r.Err())
	}
	return slices.Clone(fields)
}

// Thirty bytes could otherwise claim the largest digest there is, many times in one message.
func TestForeignGeometryIsRefusedBeforeTheBody(t *testing.T) {
	d := sampleFull(rand.New(rand.NewPCG(1, 2)), 0)
	d.Geometry.Bits, d.Words = MaxBits, make([]uint64, MaxBits/64)
	b := AppendDelta(nil, &d)
	if _, _, err := ParseDelta(b, "owner", d.Geometry); err != nil {
		t.Fatal(err)
	}
	b[len(b)-listBytes(nil, MaxBits)-1] = 9
	if _, _, err := ParseDelta(b, "owner", d.Geometry); err == nil || !strings.Contains(err.Error(), "unknown body") {
		t.Fatalf("got %v, want that the body is no body", err)
	}
	if _, _, err := ParseDelta(b, "owner", DefaultGeometry()); err == nil || !strings.Contains(err.Error(), "16777216 bits") {
		t.Errorf("got %v, want the geometry, and nothing of the body", err)
	}
}

// DESIGN.md claims this size, of 30 keys that come and 30 that go.
func TestDeltaOfASecondIsShort(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	d := NewDigest("owner/gpu0", TierGPU, 1700000000, DefaultGeometry())
	var keys []Key
	for range 6000 {
		keys = append(keys, Key(r.Uint64()))
		d.Add(keys[len(keys)-1])
	}
	now := time.Unix(0, 0)
	d.Publish(now)
	for i := range 30 {
		d.Remove(keys[i])
		d.Add(Key(r.Uint64()))
	}
	delta := d.Publish(now)
	if n := len(AppendDelta(nil, &delta)); n > 290 {
		t.Errorf("got %d bytes for %d flips, want at most 290", n, len(delta.Set)+len(delta.Clear))
	}
	if delta = d.Publish(now); len(AppendDelta(nil, &delta)) > 40 {
		t.Errorf("an empty delta takes %d bytes", len(AppendDelta(nil, &delta)))
	}
}

// geometryOf returns the geometry that an encoded delta states.
func geometryOf(b []byte) Geometry {
	var d Delta
	parseHead(engine.NewReader(engine.NewReader(b).Bytes(math.MaxInt32)), &d, "owner")
	return d.Geometry
}

func FuzzParseDelta(f *testing.F) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, d := range []Delta{sampleDelta(), sampleFull(r, 0), sampleFull(r, 100), busyDelta(true)} {
		f.Add(AppendDelta(nil, &d))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g := geometryOf(b)
		if g.Validate() != nil {
			g = DefaultGeometry()
		}
		d, _, err := ParseDelta(b, "owner", g)
		if err != nil {
			return
		}
		if err := d.validate(); err != nil {
			t.Fatalf("parsed a broken delta: %v", err)
		}
		again, rest, err := ParseDelta(AppendDelta(nil, &d), "owner", g)
		if err != nil || len(rest) > 0 {
			t.Fatalf("parse what was parsed: %d bytes over, %v", len(rest), err)
		}
		sameWords := slices.Equal(d.Words, again.Words) && d.Full() == again.Full()
		d.Words, again.Words = nil, nil // cmp takes a second for two megabytes
		if diff := cmp.Diff(d, again, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Delta{})); diff != "" || !sameWords {
			t.Fatalf("words agree: %v (-want +got):\n%s", sameWords, diff)
		}
	})
}

// busyDelta is what an engine tells each second of 100 changes: by keys, or by the bits that they flip.
func busyDelta(byKeys bool) Delta {
	keys := randomKeys(1, 6050)
	d, _ := published("owner/gpu0", 1_700_000_000_000, DefaultGeometry(), keys[:6000]...)
	for i := range 50 {
		d.Remove(keys[i])
		d.Add(keys[6000+i])
	}
	delta := d.Publish(epoch)
	delta.covered = byKeys
	return delta
}

func BenchmarkAppendDelta(b *testing.B) {
	for name, byKeys := range map[string]bool{"keys": true, "bits": false} {
		b.Run(name, func(b *testing.B) {
			d, buf := busyDelta(byKeys), []byte(nil)
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendDelta(buf[:0], &d)
			}
			b.ReportMetric(float64(len(buf)), "bytes")
		})
	}
}

func BenchmarkParseDelta(b *testing.B) {
	for name, byKeys := range map[string]bool{"keys": true, "bits": false} {
		b.Run(name, func(b *testing.B) {
			d := busyDelta(byKeys)
			buf := AppendDelta(nil, &d)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := ParseDelta(buf, "owner", DefaultGeometry()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPublish(b *testing.B) {
	keys := randomKeys(1, 6050)
	d, _ := published("owner/gpu0", 1, DefaultGeometry(), keys[:6000]...)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for j := range 50 {
			d.Remove(keys[(i*50+j)%6050])
			d.Add(keys[(i*50+j+6000)%6050])
		}
		d.Publish(epoch)
	}
}
