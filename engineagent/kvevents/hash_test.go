package kvevents

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"
)

// decodedHashes sends values as the hashes of a stored event, each also as the parent of one, and returns what arrives.
func decodedHashes(t *testing.T, hashes ...any) (got, parents []uint64) {
	t.Helper()
	events := listOf(listOf("BlockStored", hashes, nil, listOf(), 0))
	for _, h := range hashes {
		events = append(events, listOf("BlockStored", listOf(1), h, listOf(), 0))
	}
	var d Decoder
	var b Batch
	if err := d.Decode(encode(listOf(1.0, events, 0)), &b); err != nil || b.Skipped > 0 {
		t.Fatal(err, b.Skipped)
	}
	for _, e := range b.Events[1:] {
		parents = append(parents, e.Parent)
	}
	return b.Events[0].Hashes, parents
}

func sequence(from, to int) (ids []uint32) {
	for i := from; i <= to; i++ {
		ids = append(ids, uint32(i))
	}
	return ids
}

// sglangChain is SGLang's chain of SHA-256 over pages, and over a short one at the end.
func sglangChain(tokens []uint32, page int) (digests [][]byte) {
	var parent []byte
	for part := range slices.Chunk(tokens, page) {
		b := slices.Clone(parent)
		for _, id := range part {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		sum := sha256.Sum256(b)
		parent = sum[:]
		digests = append(digests, parent)
	}
	return digests
}

// SGLang sends the first eight bytes of its digests as signed integers.
func TestHashesOfSGLang(t *testing.T) {
	for _, tt := range []struct {
		tokens []uint32
		page   int
		want   []int64
	}{
		{[]uint32{1, 2, 3, 4, 5}, 4, []int64{-3488128144981237669, -3787494577174227566}},
		{
			[]uint32{10, 20, 30, 40, 50, 60, 70, 80},
			2,
			[]int64{978178666101069530, -895308556211281782, -8033692805846017938, 835415944263129316},
		},
		{[]uint32{7, 8, 9}, 1, []int64{-1702009526849766914, 903318264012984157, -8265893088400908305}},
		{
			sequence(1, 128), 16,
			[]int64{
				8635429971592222890, 1256577331724852459, 5689809685380680247, 3927976462491479733,
				5639345789331840936, -4601255381563393033, 3368460852864325515, 1233425155141659070,
			},
		},
	} {
		var wire []any
		var want []uint64
		for i, digest := range sglangChain(tt.tokens, tt.page) {
			h := int64(binary.BigEndian.Uint64(digest))
			if h != tt.want[i] {
				t.Errorf("page %d of %d: the digest gives %d, SGLang's fixture has %d", i, tt.page, h, tt.want[i])
			}
			wire, want = append(wire, int(h)), append(want, uint64(h))
		}
		if hashes, parents := decodedHashes(t, wire...); !slices.Equal(hashes, want) || !slices.Equal(parents, want) {
			t.Errorf("pages of %d: got %d, as parents %d, want %d", tt.page, hashes, parents, want)
		}
	}
}

// cbor writes canonical CBOR of what vLLM hashes: integers, bytes, texts, lists, and nil.
func cbor(b []byte, v any) []byte {
	head := func(major byte, n uint64) []byte {
		switch {
		case n < 24:
			return append(b, major<<5|byte(n))
		case n < 1<<8:
			return append(b, major<<5|24, byte(n))
		case n < 1<<16:
			return binary.BigEndian.AppendUint16(append(b, major<<5|25), uint16(n))
		default:
			return binary.BigEndian.AppendUint32(append(b, major<<5|26), uint32(n))
		}
	}
	switch v := v.(type) {
	case int:
		return head(0, uint64(v))
	case []byte:
		return append(head(2, uint64(len(v))), v...)
	case string:
		return append(head(3, uint64(len(v))), v...)
	case []any:
		b = head(4, uint64(len(v)))
		for _, item := range v {
			b = cbor(b, item)
		}
		return b
	}
	return append(b, 0xf6)
}

func vllmHash(v any) []byte {
	sum := sha256.Sum256(cbor(nil, v))
	return sum[:]
}

// vLLM sends the last eight bytes of its digests as unsigned integers, or the digests themselves. Both are one number.
func TestHashesOfVLLM(t *testing.T) {
	first, second := listOf(1, 2, 3, 4), listOf(5, 6, 7, 8)
	for _, tt := range []struct {
		seed, digest string
		want         uint64
		block        func(none []byte) any
	}{
		{
			"0", "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb", 2164874634404590027,
			func(none []byte) any { return listOf(none, first, nil) },
		},
		{
			"0", "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6", 17270480062156288726,
			func(none []byte) any { return listOf(vllmHash(listOf(none, first, nil)), second, nil) },
		},
		{
			"0", "fc4ede16a2de1e091ff40df14d03495873c6222d8e61532d7f2682cbfe0401a9", 9162154304583500201,
			func(none []byte) any { return listOf(none, first, listOf("salt")) },
		},
		{
			"0", "d16c596dacf5ec420ec64d05cf284eb7a89eb131f765f53472af25c0035c7cf7", 8263865347868490999,
			func(none []byte) any { return listOf(none, first, listOf("ad")) },
		},
		{
			"0", "cd312984d38672efee6cfe1c31df30ab3f20d7b5d5ab3b9dbc344df782b013f4", 13561550103364244468,
			func(none []byte) any { return listOf(none, first, listOf(listOf("img", 1))) },
		},
		{
			"0", "0474c9557ca4471666ab574b236c133be284c29235d18a9b8da9f6cf46da5156", 10207961400519315798,
			func(none []byte) any { return listOf(none, listOf(151644, 872, 198, 9064), nil) },
		},
		{
			"42", "0a99040f25d8a5f22275b867f403918da98c9d140eaea10f5319d4d1d84429df", 5988051177307384287,
			func(none []byte) any { return listOf(none, first, nil) },
		},
		{
			"42", "c415b4994e9ed1d993bc50f53dc3c4e18c5200f39d1787ce9ba2dacb65221d14", 11214766589215907092,
			func(none []byte) any { return listOf(vllmHash(listOf(none, first, nil)), second, nil) },
		},
		{
			"42", "681e1beea787ae01d0aeaff3519881b4d7a17842bf07ead56d8a5eb174b5ddbc", 7893225413180513724,
			func(none []byte) any { return listOf(none, first, listOf("salt")) },
		},
		{
			"42", "74cde5d07061be45712272f707422564474ef9f803949371e06668eb946d9205", 16169726873137156613,
			func(none []byte) any { return listOf(none, first, listOf("ad")) },
		},
		{
			"42", "85e050a8be11073d12cae6dd60e370e16b0dc90f8677331d8c337ca8abbedef0", 10102555452999917296,
			func(none []byte) any { return listOf(none, first, listOf(listOf("img", 1))) },
		},
		{
			"42", "cf807614f6e7c2da0f21c7c74a6362e66e5e494941c47a46d95db3efbb4a40ac", 15662872921285214380,
			func(none []byte) any { return listOf(none, listOf(151644, 872, 198, 9064), nil) },
		},
	} {
		digest := vllmHash(tt.block(vllmHash(tt.seed)))
		if got := hex.EncodeToString(digest); got != tt.digest {
			t.Errorf("seed %s: digest %s, want %s", tt.seed, got, tt.digest)
		}
		hashes, parents := decodedHashes(t, digest, tt.want)
		if want := []uint64{tt.want, tt.want}; !slices.Equal(hashes, want) || !slices.Equal(parents, want) {
			t.Errorf("digest %s: got %d, as parents %d, want %d", tt.digest, hashes, parents, want)
		}
	}
}
