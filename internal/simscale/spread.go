package simscale

import "time"

// Spread is how ages spread over samples, in seconds.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// The resolution of ages, and the age above which they are one.
const (
	ageStep = 5 * time.Millisecond
	maxAge  = 2 * time.Minute
)

// ages counts ages. It takes the same memory however many there are.
type ages struct {
	bins [maxAge/ageStep + 1]int
	n    int
	sum  time.Duration
	most time.Duration
}

func (a *ages) add(age time.Duration) {
	a.bins[min(max(age, 0), maxAge)/ageStep]++
	a.n++
	a.sum += age
	a.most = max(a.most, age)
}

func (a *ages) spread() Spread {
	if a.n == 0 {
		return Spread{}
	}
	return Spread{
		Mean: a.sum.Seconds() / float64(a.n), P50: a.quantile(0.5).Seconds(), P99: a.quantile(0.99).Seconds(), Max: a.most.Seconds(),
	}
}

// quantile returns an age that is not below a share q of all, within ageStep.
func (a *ages) quantile(q float64) time.Duration {
	left := int(q * float64(a.n))
	for i, n := range a.bins {
		if left -= n; left < 0 {
			return min(time.Duration(i+1)*ageStep, a.most)
		}
	}
	return a.most
}
