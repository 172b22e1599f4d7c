package simengine

import (
	"errors"
	"fmt"
)

// Faults are the failures that an engine shows on purpose; the zero value is a healthy engine. All routes but /sim/ are
// hit by Refuse, Unavailable and Hang, requests for generation by the rest.
type Faults struct {
	// Refuse resets the connection when a request arrives, before any byte of an answer. A connection that is refused
	// by the system comes from ending Serve.
	Refuse bool `json:"refuse,omitempty"`
	// Unavailable answers 503 everywhere, /health included.
	Unavailable bool `json:"unavailable,omitempty"`
	// Hang accepts requests and never answers.
	Hang bool `json:"hang,omitempty"`
	// Stall accepts requests for generation and never answers them; all else is well.
	Stall bool `json:"stall,omitempty"`
	// HangAfterHeaders sends the headers of a stream and nothing more.
	HangAfterHeaders bool `json:"hang_after_headers,omitempty"`
	// DieAfterTokens resets the connection of every stream after that many tokens, and of other answers when they would be
	// sent; 0 means never.
	DieAfterTokens int `json:"die_after_tokens,omitempty"`
	// ErrorRate is the share of requests, 0 to 1, that fail with ErrorStatus.
	ErrorRate float64 `json:"error_rate,omitempty"`
	// ErrorStatus is the status of those failures; 0 means 500.
	ErrorStatus int `json:"error_status,omitempty"`
	// TooMany answers 429.
	TooMany bool `json:"too_many,omitempty"`
	// Slow multiplies all times of prefill and decode from the next step on; 0 means 1.
	Slow float64 `json:"slow,omitempty"`
	// EventFaults are the failures of KV events.
	EventFaults
}

func (f *Faults) validate() error {
	var errs []error
	if !(f.ErrorRate >= 0 && f.ErrorRate <= 1) {
		errs = append(errs, fmt.Errorf("Faults.ErrorRate (%v) must lie in 0..1", f.ErrorRate))
	}
	if f.ErrorStatus != 0 && (f.ErrorStatus < 400 || f.ErrorStatus > 599) {
		errs = append(errs, fmt.Errorf("Faults.ErrorStatus (%d) must lie in 400..599", f.ErrorStatus))
	}
	if !(f.Slow >= 0) {
		errs = append(errs, fmt.Errorf("Faults.Slow (%v) must not be negative", f.Slow))
	}
	if f.DieAfterTokens < 0 {
		errs = append(errs, fmt.Errorf("Faults.DieAfterTokens (%d) must not be negative", f.DieAfterTokens))
	}
	return errors.Join(append(errs, f.EventFaults.validate())...)
}
