package workload

import (
	"math"
	"math/rand/v2"
	"time"
)

// Lengths is a lognormal distribution of token counts, the shape of real prompts and answers: many short ones and a
// long tail. The zero value always draws 1.
type Lengths struct {
	Median int
	Sigma  float64 // of the logarithm: 0 is constant, 0.8 spans a factor of 5 between the 16th and the 84th percentile
	Max    int     // longer draws are cut to it; 0 for none
}

func (l Lengths) draw(rng *rand.Rand) int {
	n := int(math.Round(float64(l.Median) * math.Exp(l.Sigma*rng.NormFloat64())))
	if l.Max > 0 {
		n = min(n, l.Max)
	}
	return max(n, 1)
}

// passage draws new text of a drawn length.
func (l Lengths) passage(rng *rand.Rand) []Passage {
	return []Passage{{ID: rng.Uint64(), Bytes: l.draw(rng) * BytesPerToken}}
}

// zipf draws 0 to n-1, k with a chance in proportion to 1/(k+1)^s.
type zipf struct {
	cumulative []float64
}

func newZipf(n int, s float64) zipf {
	z := zipf{cumulative: make([]float64, n)}
	sum := 0.0
	for k := range n {
		sum += math.Pow(float64(k+1), -s)
		z.cumulative[k] = sum
	}
	return z
}

func (z zipf) draw(rng *rand.Rand) int {
	u := rng.Float64() * z.cumulative[len(z.cumulative)-1]
	for k, c := range z.cumulative {
		if u < c {
			return k
		}
	}
	return len(z.cumulative) - 1
}

// within draws a time from 0 up to span.
func within(span time.Duration, rng *rand.Rand) time.Duration {
	return time.Duration(rng.Float64() * float64(span))
}

// think draws a user's pause: a least time to read, then an exponential one of the rest of the mean.
func think(mean time.Duration, rng *rand.Rand) time.Duration {
	least := mean / 5
	return least + time.Duration(rng.ExpFloat64()*float64(mean-least))
}

// newRand returns the generator of one seed; streams keep what is drawn from one seed apart.
func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
