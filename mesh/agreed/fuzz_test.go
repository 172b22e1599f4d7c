package agreed

import (
	"bytes"
	"testing"
)

// FuzzDecodeState reads any bytes as a state; what it takes must be written and read again as the same bytes, and take a
// command.
func FuzzDecodeState(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := decodeState(raw)
		if err != nil {
			return
		}
		once, err := encodeState(s)
		if err != nil {
			return // its numbers or depth were read, and writing them would be too large
		}
		again, err := decodeState(once)
		if err != nil {
			t.Fatalf("decode what was encoded: %v\n%s", err, once)
		}
		if twice, err := encodeState(again); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("encoded once and twice: %v\n%s\n%s", err, once, twice)
		}
		if !tooLarge(s) {
			apply(s, policy("fuzz", "p"), s.Index+1)
		}
	})
}

// FuzzDecodeCommand reads any bytes as a command and applies it.
func FuzzDecodeCommand(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := decodeCommand(raw)
		if err != nil || c.newerThan(Supported) {
			return
		}
		s := first()
		s.Geometry.Next, s.Geometry.Phase = &Geometry{Bits: 1, Hashes: 1}, PhaseSwitched
		h, next, _ := apply(s, c, 1)
		if _, err := parseHeld(h.raw); err != nil {
			t.Fatalf("%s made a state that cannot be read: %v", raw, err)
		}
		if again, _, r := apply(next, c, 2); again != nil && !r.Repeat && validID.MatchString(c.ID) {
			t.Fatalf("%s counted twice", raw)
		}
	})
}
