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
