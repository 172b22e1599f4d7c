package cachestate

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestClassesCountEveryByte compares with a count byte by byte, at every length and alignment.
func TestClassesCountEveryByte(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]byte, 4096)
	for i := range all {
		all[i] = byte(rng.IntN(256))
	}
	for range 2000 {
		from := rng.IntN(len(all))
		b := all[from : from+rng.IntN(len(all)-from+1)]
		var got, want classes
		got.add(b)
		for _, c := range b {
			switch {
			case c >= 0x80:
				want.high++
			case c == ' ' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			default:
				want.odd++
			}
		}
		if got != want {
			t.Fatalf("%d bytes: %+v, want %+v", len(b), got, want)
		}
	}
}

// TestSamplesDoNotDependOnPieces: any cut of a long text counts the same, and about as much as all of it.
func TestSamplesDoNotDependOnPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	text := make([]byte, 300_000)
	for i := range text {
		text[i] = byte(32 + rng.IntN(120))
	}
	var want, all classes
	want.addAt(0, text)
	all.add(text)
	if off := math.Abs(float64(want.odd)-float64(all.odd)) / float64(all.odd); off > 0.02 {
		t.Errorf("%d odd bytes by samples, %d are there", want.odd, all.odd)
	}
	for range 20 {
		var got classes
		for at := 0; at < len(text); {
			n := min(1+rng.IntN(5000), len(text)-at)
			got.addAt(int64(at), text[at:at+n])
			at += n
		}
		if got != want {
			t.Fatalf("%+v in pieces, %+v in one", got, want)
		}
	}
}

func TestDensityLearnsRates(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := newDensity()
	truth := [numClasses]float64{0.24, 0.61, 0.8}
	for range 200 {
		text := [numClasses]float64{rng.Float64() * 8000, rng.Float64() * 2000, rng.Float64() * 2000}
		tokens := 0.0
		for i, n := range text {
			tokens += n * truth[i]
		}
		d.learn(text, tokens*(0.97+0.06*rng.Float64()))
	}
	for i, rate := range d.rates {
		if math.Abs(rate-truth[i]) > 0.1*truth[i] {
			t.Errorf("class %d: %.3f tokens a byte, want about %.3f", i, rate, truth[i])
		}
	}
}

func BenchmarkClasses(b *testing.B) {
	text := make([]byte, 1<<16)
	for i := range text {
		text[i] = "the quick {\"brown\": 12} "[i%24]
	}
	b.SetBytes(int64(len(text)))
	var c classes
	for range b.N {
		c.add(text)
	}
}

func TestDensityEstimatesPrompts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	d := NewDensity()
	p := &Prompt{Keys: []Key{1, 2}, Offsets: []uint32{1000, 3000}, Odd: []uint32{0, 2000}, High: []uint32{0, 0}, Bytes: 3000}
	if _, _, ok := d.Tokens(p, 0); ok {
		t.Fatal("an estimate out of nothing")
	}
	for range 200 { // prose at a quarter of a token a byte, JSON at a half
		prose, odd := uint32(500+rng.IntN(8000)), uint32(rng.IntN(6000))
		d.Learn(&Prompt{
			Keys: []Key{1}, Offsets: []uint32{prose + odd}, Odd: []uint32{odd}, High: []uint32{0}, Bytes: int64(prose + odd),
		}, int(prose/4+odd/2))
	}
	before, whole, ok := d.Tokens(p, 0)
	if !ok || math.Abs(float64(before)-250) > 15 || math.Abs(float64(whole)-1250) > 40 {
		t.Errorf("%d of %d tokens, %v; want about 250 of 1,250", before, whole, ok)
	}
	if _, _, ok := d.Tokens(&Prompt{Keys: []Key{1}, Offsets: []uint32{9}, Bytes: 9}, 0); ok {
		t.Error("an estimate of a prompt that does not say what its bytes are")
	}
}
