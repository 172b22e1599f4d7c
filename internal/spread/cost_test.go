package spread

import "testing"

// The figures are means of 100 messages, counted by mesh.Traffic.
func TestCostIsWhatWasMeasured(t *testing.T) {
	for _, tt := range []struct {
		name         string
		got          Cost
		bytes, backs int
	}{
		{"20 bytes", FeedCost(20), 77, 61},
		{"45 bytes", FeedCost(45), 102, 61},
		{"225 bytes", FeedCost(225), 283, 61},
		{"587 bytes", FeedCost(587), 645, 61},
		{"1,200 bytes", FeedCost(1200), 1257, 61},
		{"2,129 bytes", FeedCost(2129), 2244, 61},
		{"5,000 bytes", FeedCost(5000), 5228, 62},
		{"16,384 bytes", FeedCost(16384), 17069, 66},
		{"datagram of 20", DatagramCost(20), 73, 61},
		{"datagram of 1,100", DatagramCost(1100), 1153, 61},
		{"pull of 15,000", FeedCost(15000), 15735, 61},
	} {
		if off(tt.got.Bytes, tt.bytes) > 0.01 || off(tt.got.AckBytes, tt.backs) > 0.1 {
			t.Errorf("%s: %+v, measured %d and %d back", tt.name, tt.got, tt.bytes, tt.backs)
		}
	}
}

func off(got, want int) float64 {
	d := float64(got-want) / float64(want)
	return max(d, -d)
}
