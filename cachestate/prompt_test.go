package cachestate

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// pair is one step of a canonical walk.
type pair struct {
	tag   byte
	piece []byte
}

type walk []pair

func (w walk) seq() iter.Seq2[byte, []byte] {
	return func(yield func(byte, []byte) bool) {
		for _, p := range w {
			if !yield(p.tag, p.piece) {
				return
			}
		}
	}
}

const (
	tagModel   = 0x10
	tagRole    = 0x20
	tagContent = 0x21
)

func field(tag byte, pieces ...[]byte) walk {
	var w walk
	for _, p := range pieces {
		w = append(w, pair{tag, p})
	}
	return append(w, pair{tag | CloseField, nil})
}

// message is a message of one role and one content, and chat a prompt of such messages.
func message(role string, content ...[]byte) walk {
	w := slices.Concat(field(tagRole, []byte(role)), field(tagContent, content...))
	return append(w, pair{EndMessage, nil})
}

func chat(model string, messages ...walk) walk {
	w := append(field(tagModel, []byte(model)), pair{EndRoot, nil})
	return append(w, slices.Concat(messages...)...)
}

func keysOf(w walk) *Prompt {
	var p Prompt
	DefaultScheme().Prompt(w.seq(), &p)
	return &p
}

// text returns n bytes that differ with the seed.
func text(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), seed)))
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

// plainPrompt is the dumb twin of Scheme.Prompt: it writes the whole stream down and hashes every prefix anew.
func plainPrompt(s Scheme, w walk) *Prompt {
	var p Prompt
	var stream []byte
	var open byte
	var length uint64
	root := true
	key := func() {
		again := len(p.Offsets) > 0 && int64(p.Offsets[len(p.Offsets)-1]) == p.Bytes
		if len(p.Keys) < MaxKeys && !root && !again {
			h := xxhash.NewWithSeed(s.Seed)
			_, _ = h.Write(stream)
			p.Keys = append(p.Keys, Key(h.Sum64()))
			p.Offsets = append(p.Offsets, uint32(p.Bytes))
		}
	}
	for _, step := range w {
		switch {
		case step.tag == EndRoot || step.tag == EndMessage:
			root = root && step.tag != EndRoot
			stream = append(stream, step.tag)
			key()
			continue
		case open == 0:
			open, length = step.tag&^CloseField, 0
			stream = append(stream, open)
		}
		if step.tag&CloseField != 0 {
			stream = append(stream, step.tag)
			stream = binary.LittleEndian.AppendUint64(stream, length)
			open = 0
			continue
		}
		for _, b := range step.piece {
			stream = append(stream, b)
			length++
			if root {
				continue
			}
			if p.Bytes++; isBoundary(p.Bytes) {
				key()
			}
		}
	}
	return &p
}

// isBoundary says DESIGN section 4 in its own words.
func isBoundary(n int64) bool {
	switch {
	case n <= 16<<10:
		return n%512 == 0
	case n <= 64<<10:
		return n%(1<<10) == 0
	case n <= 512<<10:
		return n%(2<<10) == 0
	case n <= 4<<20:
		return n%(8<<10) == 0
	}
	return false
}

func samePrompt(a, b *Prompt) bool {
	return slices.Equal(a.Keys, b.Keys) && slices.Equal(a.Offsets, b.Offsets) && a.Bytes == b.Bytes
}

func TestPromptAgreesWithPlainPrompt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := chat(rapid.String().Draw(t, "model"))
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			var pieces [][]byte
			for range rapid.IntRange(0, 3).Draw(t, "pieces") {
				pieces = append(pieces, text(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 2000).Draw(t, "size")))
			}
			w = append(w, message(rapid.SampledFrom([]string{"", "user", "tool"}).Draw(t, "role"), pieces...)...)
		}
		got, want := keysOf(w), plainPrompt(DefaultScheme(), w)
		if !samePrompt(got, want) {
			t.Fatalf("got %d keys %v, want %d keys %v", len(got.Keys), got.Offsets, len(want.Keys), want.Offsets)
		}
	})
}

func TestPromptsShareKeysUpToWhereTheyDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 40<<10).Draw(t, "shared")
		shared := text(rapid.Uint64().Draw(t, "seed"), size)
		x := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "x")
		y := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "y")
		a := keysOf(chat("m", message("user", shared, x)))
		b := keysOf(chat("m", message("user", shared, y)))

		common := commonPrefix(slices.Concat(shared, x), slices.Concat(shared, y))
		// The role is content too: every boundary counts from the end of the root.
		reach := int64(len("user") + common)
		for i := range min(len(a.Keys), len(b.Keys)) {
			within := int64(a.Offsets[i]) <= reach && isBoundary(int64(a.Offsets[i])) || i == 0
			if within && a.Keys[i] != b.Keys[i] {
				t.Fatalf("key %d at %d differs, shared %d bytes", i, a.Offsets[i], reach)
			}
			if int64(min(a.Offsets[i], b.Offsets[i])) > reach && a.Keys[i] == b.Keys[i] {
				t.Fatalf("key %d at %d is equal, shared %d bytes", i, a.Offsets[i], reach)
			}
		}
	})
}

func commonPrefix(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestCuttingAFieldIntoPiecesChangesNothing(t *testing.T) {
	content := text(1, 70_000)
	want := keysOf(chat("m", message("user", content)))
	rapid.Check(t, func(t *rapid.T) {
		var pieces [][]byte
		for rest := content; len(rest) > 0; {
			n := min(rapid.IntRange(0, 9000).Draw(t, "piece"), len(rest))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		if got := keysOf(chat("m", message("user", pieces...))); !samePrompt(got, want) {
			t.Fatalf("keys of %d pieces differ", len(pieces))
		}
	})
}

func TestFieldsDoNotRunIntoEachOther(t *testing.T) {
	prompts := map[string]walk{
		"two fields":       chat("m", append(slices.Concat(field(0x11, []byte("a")), field(0x12, []byte("b"))), pair{EndMessage, nil})),
		"other split":      chat("m", append(slices.Concat(field(0x11, []byte("ab")), field(0x12)), pair{EndMessage, nil})),
		"other tags":       chat("m", append(slices.Concat(field(0x12, []byte("a")), field(0x11, []byte("b"))), pair{EndMessage, nil})),
		"empty field":      chat("m", append(slices.Concat(field(0x11, []byte("a")), field(0x12, []byte("b")), field(0x13)), pair{EndMessage, nil})),
		"field twice":      chat("m", append(slices.Concat(field(0x11, []byte("a")), field(0x11, []byte("b"))), pair{EndMessage, nil})),
		"two messages":     chat("m", append(slices.Concat(field(0x11, []byte("a")), walk{{EndMessage, nil}}, field(0x12, []byte("b"))), pair{EndMessage, nil})),
		"another root":     chat("n", append(slices.Concat(field(0x11, []byte("a")), field(0x12, []byte("b"))), pair{EndMessage, nil})),
		"root runs longer": chat("m", message("x")),
	}
	seen := map[Key]string{}
	for name, w := range prompts {
		p := keysOf(w)
		last := p.Keys[len(p.Keys)-1]
		if other, ok := seen[last]; ok {
			t.Errorf("%q and %q end in one key", name, other)
		}
		seen[last] = name
	}
}

func TestEmptyPieceIsNoField(t *testing.T) {
	a := keysOf(chat("m", message("user", nil, []byte("hi"), nil)))
	b := keysOf(chat("m", message("user", []byte("hi"))))
	if !samePrompt(a, b) {
		t.Error("empty pieces change keys")
	}
}

func TestOtherSeedSharesNoKey(t *testing.T) {
	w := chat("m", message("user", text(1, 2000)))
	a, b := keysOf(w), Prompt{}
	Scheme{Version: 1, Seed: 7}.Prompt(w.seq(), &b)
	for i, k := range a.Keys {
		if slices.Contains(b.Keys, k) {
			t.Errorf("key %d is shared", i)
		}
	}
}

func TestSchedule(t *testing.T) {
	tests := []struct {
		bytes, keys int
	}{
		{0, 1},
		{511, 1},
		{512, 2},
		{16 << 10, 33},
		{64 << 10, 81},
		{400_000, 244},
		{512 << 10, 305},
		{4 << 20, 753},
		{5 << 20, 753},
	}
	for _, tt := range tests {
		w := append(chat("m"), pair{tagContent, make([]byte, tt.bytes)})
		p := keysOf(w)
		if len(p.Keys) != tt.keys || p.Bytes != int64(tt.bytes) {
			t.Errorf("%d bytes: got %d keys, %d bytes, want %d keys", tt.bytes, len(p.Keys), p.Bytes, tt.keys)
		}
	}
}

func TestNoKeyAfterTheLast(t *testing.T) {
	var messages []walk
	for range MaxKeys + 10 {
		messages = append(messages, message("user", bytes.Repeat([]byte("x"), 96)))
	}
	w := chat("m", messages...)
	got, want := keysOf(w), plainPrompt(DefaultScheme(), w)
	if len(got.Keys) != MaxKeys || got.Bytes != int64((MaxKeys+10)*100) || !samePrompt(got, want) {
		t.Errorf("got %d keys and %d bytes, want %d and %d", len(got.Keys), got.Bytes, len(want.Keys), want.Bytes)
	}
}

func TestKeysOfVersion1Stay(t *testing.T) {
	p := keysOf(chat("llama", message("user", []byte("Hello, who are you?"))))
	want := []Key{11816861749277077638, 18001837959734499025}
	if diff := cmp.Diff(want, p.Keys); diff != "" {
		t.Errorf("keys of version 1 changed; a mesh of both versions would share nothing (-want +got):\n%s", diff)
	}
}

func TestRefillingAPromptAllocatesNothing(t *testing.T) {
	seq := chat("m", message("user", text(1, 100_000))).seq()
	var p Prompt
	DefaultScheme().Prompt(seq, &p)
	if n := testing.AllocsPerRun(10, func() { DefaultScheme().Prompt(seq, &p) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestCopiedPromptIsFilledByItself(t *testing.T) {
	p := *keysOf(chat("m", message("user", []byte("a"))))
	q := p
	q.Keys, q.Offsets = slices.Clone(p.Keys), slices.Clone(p.Offsets)
	want := slices.Clone(p.Keys)
	DefaultScheme().Prompt(chat("n", message("user", text(2, 5000))).seq(), &q)
	if diff := cmp.Diff(want, p.Keys); diff != "" || len(q.Keys) < 10 {
		t.Errorf("filling a copy changed the original (-want +got):\n%s", diff)
	}
}

func TestTokens(t *testing.T) {
	p := Prompt{Keys: make([]Key, 4), Offsets: []uint32{0, 512, 1024, 1200}, Bytes: 1200}
	tests := []struct {
		keys int
		bpt  float64
		want int
	}{
		{-1, 4, 0},
		{0, 4, 0},
		{1, 4, 0},
		{2, 4, 128},
		{3, 4, 256},
		{4, 4, 299}, // a full hit computes its last token again
		{9, 4, 299},
		{2, 0, 512}, // no rate: a byte is a token
		{4, 1e9, 0},
	}
	for _, tt := range tests {
		if got := p.Tokens(tt.keys, tt.bpt); got != tt.want {
			t.Errorf("Tokens(%d, %v) = %d, want %d", tt.keys, tt.bpt, got, tt.want)
		}
	}
}

func BenchmarkPrompt400kB(b *testing.B) {
	seq := chat("m", message("system", text(1, 100_000)), message("user", text(2, 300_000))).seq()
	var p Prompt
	b.ReportAllocs()
	b.SetBytes(400_000)
	for b.Loop() {
		DefaultScheme().Prompt(seq, &p)
	}
}
