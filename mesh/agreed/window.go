package agreed

import "slices"

const (
	// windowSize is how many commands a repeat is recognised among. A write is retried for seconds, and operators write a
	// few times a minute; each place costs about 60 bytes in every copy of the state.
	windowSize = 1024
	// maxRememberedBytes bounds one place in it: an id of 64 bytes, an index, a refusal, and the JSON around them.
	maxRememberedBytes = 160
	maxRefusalBytes    = 16
)

// remembered is a command that was applied, and what came of it.
type remembered struct {
	ID      string  `json:"id"`
	Index   uint64  `json:"index"`
	Refusal Refusal `json:"refusal,omitzero"`
}

func (r remembered) tooLong() bool { return len(r.ID) > maxIDBytes || len(r.Refusal) > maxRefusalBytes }

func recall(window []remembered, id string) (remembered, bool) {
	for _, r := range slices.Backward(window) { // a repeat comes soon after
		if r.ID == id {
			return r, true
		}
	}
	return remembered{}, false
}

// remember returns a copy of the window with r at its end and at most windowSize places.
func remember(window []remembered, r remembered) []remembered {
	window = window[max(0, len(window)+1-windowSize):]
	return append(slices.Clip(slices.Clone(window)), r)
}
