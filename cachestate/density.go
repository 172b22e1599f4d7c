package cachestate

import "encoding/binary"

// Bytes are not alike: a token takes four or five letters of prose, two or three bytes of JSON, and one or two characters
// of another script. Positions between known ones are therefore reckoned by three classes of bytes, whose tokens per byte
// are learned.

// odd and high are the counts of bytes that are no ASCII letters or spaces, and of bytes from 0x80 on.
type classes struct{ odd, high uint32 }

const (
	lowBits = 0x7f7f7f7f7f7f7f7f
	ones    = 0x0101010101010101
)

// add counts the bytes of b, eight at a time: each lane of a word counts for itself, at most 255 times.
func (c *classes) add(b []byte) {
	n := len(b)
	plain, high := 0, 0
	for len(b) >= 8 {
		chunk := b[:min(len(b)&^7, 255*8)]
		b = b[len(chunk):]
		var plains, highs uint64
		for ; len(chunk) >= 8; chunk = chunk[8:] {
			x := binary.LittleEndian.Uint64(chunk)
			low := x & lowBits
			lower := low | 0x20*ones
			letter := (lower + (0x80-'a')*ones) &^ (lower + (0x80-'z'-1)*ones)
			space := ^((low ^ ' '*ones) + lowBits)
			plains += ((letter | space) &^ x) >> 7 & ones
			highs += x >> 7 & ones
		}
		plain, high = plain+lanes(plains), high+lanes(highs)
	}
	for _, x := range b {
		switch lower := x | 0x20; {
		case x >= 0x80:
			high++
		case x == ' ' || lower >= 'a' && lower <= 'z':
			plain++
		}
	}
	c.odd += uint32(n - plain - high)
	c.high += uint32(high)
}

// Of long prompts a sample is enough: beyond sampleFrom bytes, sampled of every sampleStep count for all of them. Counting
// each byte would take a quarter of the time that a decision about 400 kB may take.
const (
	sampleFrom = 16 << 10
	sampleStep = 512
	sampled    = 64
)

// unsampled reports whether none of n bytes at a place is part of the sample. Texts with many escapes come in small pieces.
func unsampled(at, n int64) bool {
	in := at & (sampleStep - 1)
	return at >= sampleFrom && in >= sampled && in+n <= sampleStep
}

// addAt counts the bytes of b, which begins at so many bytes of content. What is counted depends on where bytes stand, not
// on how content is cut into pieces.
func (c *classes) addAt(at int64, b []byte) {
	if whole := min(sampleFrom-at, int64(len(b))); whole > 0 {
		c.add(b[:whole])
		at, b = at+whole, b[whole:]
	}
	var part classes
	for len(b) > 0 {
		in := at % sampleStep
		if in < sampled {
			part.add(b[:min(sampled-in, int64(len(b)))])
		}
		n := min(sampleStep-in, int64(len(b)))
		at, b = at+n, b[n:]
	}
	c.odd += part.odd * (sampleStep / sampled)
	c.high += part.high * (sampleStep / sampled)
}

// lanes returns the sum of the eight bytes of x.
func lanes(x uint64) int {
	const pairs = 0x00ff00ff00ff00ff
	x = x&pairs + x>>8&pairs
	return int(x * 0x0001000100010001 >> 48)
}

// markup is what the end of a message counts as, in odd bytes: templates put a few tokens around each.
const markup = 8

// features are the bytes of each class up to a key.
func (p *Prompt) features(i int) [numClasses]float64 {
	odd, high := float64(p.Odd[i]), float64(p.High[i])
	return [numClasses]float64{max(float64(p.Offsets[i])-odd-high, 0), odd, high}
}

const numClasses = 3

// density learns how many tokens a byte of each class makes, by least squares over what prompts were rendered to. Old
// prompts fade.
type density struct {
	squares [numClasses][numClasses]float64
	moments [numClasses]float64
	rates   [numClasses]float64 // tokens a byte
}

// firstRates stand for an ordinary vocabulary: letters, the rest of ASCII, everything else.
var firstRates = [numClasses]float64{0.22, 0.5, 0.4}

const (
	densityFade = 0.98
	// densityPrior is what the first rates weigh, in squared bytes: as much as a prompt of a thousand bytes in each class.
	densityPrior = 1e6
)

func newDensity() density {
	d := density{rates: firstRates}
	d.fix()
	return d
}

// fix keeps the first rates from fading altogether: a class that is not seen any more must have some rate.
func (d *density) fix() {
	for i, rate := range firstRates {
		d.squares[i][i] += densityPrior * (1 - densityFade)
		d.moments[i] += densityPrior * (1 - densityFade) * rate
	}
}

// learn takes a text with so many bytes of each class that was rendered to so many tokens.
func (d *density) learn(bytes [numClasses]float64, tokens float64) {
	for i := range numClasses {
		d.moments[i] = d.moments[i]*densityFade + bytes[i]*tokens
		for j := range numClasses {
			d.squares[i][j] = d.squares[i][j]*densityFade + bytes[i]*bytes[j]
		}
	}
	d.fix()
	d.solve()
}

// solve computes the rates by elimination. The matrix is positive definite, since fix adds to its diagonal.
func (d *density) solve() {
	a, x := d.squares, d.moments
	for i := range numClasses {
		for j := i + 1; j < numClasses; j++ {
			f := a[j][i] / a[i][i]
			for k := i; k < numClasses; k++ {
				a[j][k] -= f * a[i][k]
			}
			x[j] -= f * x[i]
		}
	}
	for i := numClasses - 1; i >= 0; i-- {
		for j := i + 1; j < numClasses; j++ {
			x[i] -= a[i][j] * x[j]
		}
		x[i] /= a[i][i]
		d.rates[i] = min(max(x[i], 0.02), 2)
	}
}

// tokens estimates the length of a text.
func (d *density) tokens(bytes [numClasses]float64) float64 {
	sum := 0.0
	for i, n := range bytes {
		sum += n * d.rates[i]
	}
	return sum
}

// between returns b less a.
func between(a, b [numClasses]float64) [numClasses]float64 {
	for i := range b {
		b[i] = max(b[i]-a[i], 0)
	}
	return b
}

// Density estimates the length of prompts in tokens by what their bytes are, as the lengths that an engine reports teach
// it. It is for one goroutine or under one lock.
type Density struct {
	density density
	learned int
}

// densityNeeds is how many prompts must have been learned from before estimates are better than a mean over all bytes.
const densityNeeds = 16

// NewDensity returns a Density that has learned nothing.
func NewDensity() *Density { return &Density{density: newDensity()} }

// Learn takes the length of a prompt. Prompts that go on behind their last key teach nothing.
func (d *Density) Learn(p *Prompt, tokens int) {
	last := len(p.Keys) - 1
	if last < 0 || len(p.Odd) != len(p.Keys) || int64(p.Offsets[last]) != p.Bytes || tokens <= 0 {
		return
	}
	d.density.learn(p.features(last), float64(tokens))
	d.learned++
}

// Tokens estimates how many tokens lie before a prompt's key number n, and before its end. ok is false while too little
// was learned, and for prompts that do not say what their bytes are.
func (d *Density) Tokens(p *Prompt, n int) (before, whole int, ok bool) {
	last := len(p.Keys) - 1
	if d.learned < densityNeeds || last < 0 || n > last || len(p.Odd) != len(p.Keys) {
		return 0, 0, false
	}
	rest := float64(p.Bytes-int64(p.Offsets[last])) * d.density.rates[0]
	whole = int(bounded(int64(d.density.tokens(p.features(last)) + rest)))
	if n >= 0 {
		before = min(int(bounded(int64(d.density.tokens(p.features(n))))), max(whole-1, 0))
	}
	return before, whole, true
}
