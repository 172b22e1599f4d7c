package workload

import (
	"bytes"
	"testing"
)

func TestEqualIDsGiveEqualText(t *testing.T) {
	a, b := NewText(7), NewText(7)
	if !bytes.Equal(a.Append(nil, 5, 2048), b.Append(nil, 5, 2048)) {
		t.Error("two generators of one seed differ")
	}
	if bytes.Equal(a.Append(nil, 5, 2048), a.Append(nil, 6, 2048)) {
		t.Error("two ids have one text")
	}
	if bytes.Equal(a.Append(nil, 5, 2048), NewText(8).Append(nil, 5, 2048)) {
		t.Error("two seeds have one text")
	}
}

func TestShorterTextIsPrefixOfLonger(t *testing.T) {
	text := NewText(1)
	long := text.Append(nil, 3, 5000)
	for _, n := range []int{0, 1, 17, 255, 2048, 4999} {
		if short := text.Append(nil, 3, n); len(short) != n || !bytes.HasPrefix(long, short) {
			t.Errorf("Append(3, %d) has %d bytes or is no prefix of the longer text", n, len(short))
		}
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	if got := NewText(1).Append([]byte("before "), 1, 10); !bytes.HasPrefix(got, []byte("before ")) || len(got) != 17 {
		t.Errorf("Append after 7 bytes = %q", got)
	}
}

func TestTextIsVaried(t *testing.T) {
	text := NewText(1)
	seen := map[string]bool{}
	for id := range uint64(200) {
		for w := range bytes.FieldsSeq(text.Append(nil, id, 2048)) {
			seen[string(bytes.ToLower(bytes.Trim(w, ".")))] = true
		}
	}
	if len(seen) < 1000 {
		t.Errorf("200 blocks have %d different words", len(seen))
	}
}

func BenchmarkBlockText(b *testing.B) {
	text := NewText(1)
	buf := make([]byte, 0, 2048+maxSentence)
	b.ReportAllocs()
	b.SetBytes(2048)
	for id := uint64(0); b.Loop(); id++ {
		buf = text.Append(buf[:0], id, 2048)
	}
}
