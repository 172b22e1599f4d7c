package simulate

import "time"

// meter is the integral of a value over the part of time that counts.
type meter struct {
	from, to time.Duration
	at       time.Duration
	value    float64
	sum      float64 // value × seconds
}

// set notes the value from now on.
func (m *meter) set(value float64, now time.Duration) {
	if begin, end := max(m.at, m.from), min(now, m.to); begin < end {
		m.sum += m.value * (end - begin).Seconds()
	}
	m.at, m.value = now, value
}

// add changes the value.
func (m *meter) add(delta float64, now time.Duration) { m.set(m.value+delta, now) }

// mean is the average over the time that counts, once it is over.
func (m *meter) mean() float64 {
	m.set(m.value, m.to)
	return m.sum / (m.to - m.from).Seconds()
}
