package cachestate

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever comes and goes between versions, keys tell the flips and nothing that is not so at the end.
func TestKeysTellWhatListsTell(t *testing.T) {
	told := 0
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{Bits: 1 << rapid.IntRange(14, 20).Draw(t, "bits"), Hashes: uint8(rapid.IntRange(1, MaxHashes).Draw(t, "hashes"))}
		d, pool := NewDigest("a/e", TierGPU, 1, g), randomKeys(rapid.Uint64().Draw(t, "seed"), 40)
		var held []Key
		for range rapid.IntRange(1, 5).Draw(t, "versions") {
			for range rapid.IntRange(0, 30).Draw(t, "moves") {
				if i := rapid.IntRange(-20, len(held)-1).Draw(t, "goes"); i >= 0 {
					d.Remove(held[i])
					held = slices.Delete(held, i, i+1)
				} else {
					held = append(held, rapid.SampledFrom(pool).Draw(t, "comes"))
					d.Add(held[len(held)-1])
				}
			}
			d.Publish(epoch)
		}
		for version := range d.version {
			delta, ok := d.Since(version)
			if !ok {
				continue
			}
			if !delta.covered {
				t.Fatalf("from %d to %d: no keys cover the flips", version, delta.To)
			}
			told++
			checkKeys(t, d, &delta)
		}
	})
	if told == 0 {
		t.Error("no delta was told by keys")
	}
}

// checkKeys encodes a delta by its keys, however short that is.
func checkKeys(t *rapid.T, d *Digest, delta *Delta) {
	g := d.geometry
	keys := appendKeys(appendKeys([]byte{bodyKeys}, g, delta.came, false), g, delta.went, true)
	if size := 1 + g.keysBytes(delta.came, false) + g.keysBytes(delta.went, true); len(keys) != size {
		t.Fatalf("got %d bytes, predicted %d", len(keys), size)
	}
	got, _, err := ParseDelta(sized(appendHead(nil, delta), keys), "a", g)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range delta.Set {
		if !slices.Contains(got.Set, at) {
			t.Fatalf("bit %d is not told to be set", at)
		}
	}
	for _, at := range delta.Clear {
		if !slices.Contains(got.Clear, at) {
			t.Fatalf("bit %d is not told to be clear", at)
		}
	}
	if i := slices.IndexFunc(got.Set, func(at uint32) bool { return !d.isPublished(at) }); i >= 0 {
		t.Fatalf("bit %d is told to be set", got.Set[i])
	}
	if i := slices.IndexFunc(got.Clear, d.isPublished); i >= 0 {
		t.Fatalf("bit %d is told to be clear", got.Clear[i])
	}
}

func TestFewKeysAreToldAsKeysAndManyAsBits(t *testing.T) {
	for _, tt := range []struct {
		moves int // that come, and as many that go
		body  byte
		most  int // bytes
	}{{15, bodyKeys, 170}, {50, bodyKeys, 440}, {75, bodyKeys, 630}, {250, bodyKeys, 1900}, {1000, bodyLists, 7000}, {2500, bodyList, 14000}} {
		keys := randomKeys(7, 6000+tt.moves)
		d, _ := published("owner/gpu0", 1_700_000_000_000, DefaultGeometry(), keys[:6000]...)
		for i := range tt.moves {
			d.Remove(keys[i])
			d.Add(keys[6000+i])
		}
		delta := d.Publish(epoch)
		if got := appendBody(nil, &delta)[0]; got != tt.body {
			t.Errorf("%d moves: got body %d, want %d", tt.moves, got, tt.body)
		}
		if got := len(AppendDelta(nil, &delta)); got > tt.most {
			t.Errorf("%d moves: got %d bytes, want at most %d", tt.moves, got, tt.most)
		}
	}
}

// A key that comes and goes flips nothing: the memory of it must not grow with how often it does.
func TestMovesAreBounded(t *testing.T) {
	d, _ := published("a/e", 1, DefaultGeometry(), randomKeys(1, 100)...)
	for range 10_000 {
		d.Add(1)
		d.Remove(1)
	}
	if n := len(d.moved.came) + len(d.moved.went); n > 2*d.maxMoves() {
		t.Errorf("got %d moves kept", n)
	}
	d.Add(2)
	if delta := d.Publish(epoch); delta.covered || len(delta.Set) != 5 {
		t.Errorf("got %d bits set, covered %v", len(delta.Set), delta.covered)
	}
	d.Add(3)
	if delta := d.Publish(epoch); !delta.covered {
		t.Error("the next version is not told by its keys")
	}
}
