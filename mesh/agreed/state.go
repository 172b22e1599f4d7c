package agreed

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Supported is the newest version of the state machine that this program knows. It grows when a new Kind of command, or a
// command's new meaning, comes in; new fields that nothing decides by do not need it.
const Supported = 1

const (
	// MaxState bounds the encoded state: every agent keeps it in memory and on disk, and each change sends it to each.
	MaxState = 1 << 20
	// maxContent bounds it without the window of ids, which the rest of MaxState is room for.
	maxContent = MaxState - windowSize*maxRememberedBytes
	// maxMark bounds an encoded mark.
	maxMark = 1 << 10
	// maxHistory is how many policies are kept to go back to.
	maxHistory = 20
	// maxHistoryBytes bounds their text, so that a few long policies leave room for the rest; the oldest go first.
	maxHistoryBytes = 384 << 10
)

// State is what the voters agreed on, as of Index. Whoever has a State must not change it: it is shared. Members that a
// newer version added are kept in the Unknown fields, through commands, snapshots and files.
type State struct {
	Version int       `json:"version"`         // of the state machine that all voters know; commands above it are refused
	Group   string    `json:"group,omitzero"`  // which group of voters decided; two groups have two
	Epoch   uint64    `json:"epoch,omitzero"`  // counts recoveries from a lost majority: a higher one is newer at any index
	Index   uint64    `json:"index"`           // raft index of the last command that counted
	Time    time.Time `json:"time,omitzero"`   // of the latest command, as its leader's clock had it
	Policy  Policy    `json:"policy,omitzero"` // in force; without text: the built-in one, or the config file's
	History []Policy  `json:"history,omitzero"`

	Geometry   GeometryChange          `json:"geometry,omitzero"`
	Schemes    map[string]SchemeChange `json:"schemes,omitzero"` // by model
	Cordons    []Cordon                `json:"cordons,omitzero"` // in the order of their targets
	Revoked    []Revoked               `json:"revoked,omitzero"` // in the order of their serials
	APIKeys    uint64                  `json:"api_keys,omitzero"`
	Remembered []remembered            `json:"remembered,omitzero"` // the last commands that counted, oldest first
	Unknown    jsontext.Value          `json:",embed"`
}

// Policy is one policy text as the operator wrote it. This package does not read it.
type Policy struct {
	Text    string         `json:"text"`
	Index   uint64         `json:"index"` // of the command that brought it: what BasedOn and Rollback name
	Author  string         `json:"author,omitzero"`
	Time    time.Time      `json:"time,omitzero"`
	Unknown jsontext.Value `json:",embed"`
}

// Phase says how far the change of digest geometry is.
type Phase string

// The phases of a change of digest geometry, in their order.
const (
	PhaseStable   Phase = ""         // only Current
	PhaseBoth     Phase = "both"     // agents publish both digests, and route on Current
	PhaseSwitched Phase = "switched" // agents publish both, and route on Next; it can still be taken back
)

// Geometry is the bits and hashes of every digest.
type Geometry struct {
	Bits    uint64         `json:"bits"`
	Hashes  int            `json:"hashes"`
	Unknown jsontext.Value `json:",embed"`
}

// GeometryChange is the digest geometry in force and the one that is being changed to.
type GeometryChange struct {
	Current Geometry       `json:"current,omitzero"` // zero: the built-in one
	Next    *Geometry      `json:"next,omitzero"`    // nil in PhaseStable
	Phase   Phase          `json:"phase,omitzero"`
	Since   time.Time      `json:"since,omitzero"` // when the phase began
	Unknown jsontext.Value `json:",embed"`
}

// Scheme is a key scheme and what is known of a model's layout. Its values are opaque here.
type Scheme struct {
	Version uint32         `json:"version"`
	Seed    string         `json:"seed,omitzero"`
	Layout  string         `json:"layout,omitzero"`
	Unknown jsontext.Value `json:",embed"`
}

// SchemeChange is a model's key scheme and, within a window, the one that ingresses compute besides it.
type SchemeChange struct {
	Current Scheme         `json:"current,omitzero"` // zero: the built-in one
	Next    *Scheme        `json:"next,omitzero"`
	Since   time.Time      `json:"since,omitzero"` // when the window began, or Current came into force
	Unknown jsontext.Value `json:",embed"`
}

// Target is what a cordon is about.
type Target struct {
	Engine string `json:"engine,omitzero"` // exactly one of the two is set
	Agent  string `json:"agent,omitzero"`
}

// Cordon keeps new requests from an engine, or from all engines of an agent.
type Cordon struct {
	Target  Target         `json:"target"`
	Reason  string         `json:"reason,omitzero"`
	Author  string         `json:"author,omitzero"`
	Since   time.Time      `json:"since,omitzero"`
	Expiry  time.Time      `json:"expiry,omitzero"` // zero: until it is lifted
	Unknown jsontext.Value `json:",embed"`
}

// Revoked is a certificate that is no longer believed.
type Revoked struct {
	Serial  string         `json:"serial"` // lower-case hexadecimal
	Author  string         `json:"author,omitzero"`
	Reason  string         `json:"reason,omitzero"`
	Until   time.Time      `json:"until,omitzero"` // when the certificate ends by itself and need not be kept; zero: kept for ever
	Unknown jsontext.Value `json:",embed"`
}

// Cordoned returns the cordon on t that holds at now.
func (s *State) Cordoned(t Target, now time.Time) (Cordon, bool) {
	for _, c := range s.Cordons {
		if c.Target == t && c.holds(now) {
			return c, true
		}
	}
	return Cordon{}, false
}

func (c Cordon) holds(now time.Time) bool { return c.Expiry.IsZero() || now.Before(c.Expiry) }

// mark is a state's place in history, and what it says there.
type mark struct {
	Group string `json:"group,omitzero"`
	Epoch uint64 `json:"epoch,omitzero"`
	Index uint64 `json:"index"`
	Hash  digest `json:"hash"`
}

// digest is SHA-256 of an encoded state, in hexadecimal where it is text.
type digest [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler.
func (d digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("hash of %d digits", len(text))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// newer reports whether a comes after b.
func (a mark) newer(b mark) bool {
	if a.Epoch != b.Epoch {
		return a.Epoch > b.Epoch
	}
	return a.Index > b.Index
}

// held is an immutable state with its encoded form, which is passed on as it came: an older version might write another.
type held struct {
	state *State
	raw   []byte
	mark  mark
}

// hold encodes s, which must not change from now on.
func hold(s *State) (*held, error) {
	raw, err := encodeState(s)
	if err != nil {
		return nil, err
	}
	return newHeld(s, raw), nil
}

// parseHeld reads an encoded state of at most MaxState bytes. It keeps raw.
func parseHeld(raw []byte) (*held, error) {
	s, err := decodeState(raw)
	if err != nil {
		return nil, err
	}
	return newHeld(s, raw), nil
}

func newHeld(s *State, raw []byte) *held {
	return &held{s, raw, mark{Group: s.Group, Epoch: s.Epoch, Index: s.Index, Hash: sha256.Sum256(raw)}}
}

var errStateTooLarge = fmt.Errorf("state is larger than %d bytes", MaxState)

// encodeState writes s with all members sorted by name, so that equal states are equal bytes whichever version wrote them.
func encodeState(s *State) ([]byte, error) {
	raw, err := canonical(s)
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	if len(raw) > MaxState {
		return nil, errStateTooLarge
	}
	return raw, nil
}

func decodeState(raw []byte) (*State, error) {
	if len(raw) > MaxState {
		return nil, errStateTooLarge
	}
	s := new(State)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("decode state: %w", err)
	}
	if s.Version < 1 {
		return nil, errors.New("decode state: it has no version")
	}
	if len(s.Remembered) > windowSize || slices.ContainsFunc(s.Remembered, remembered.tooLong) {
		return nil, errors.New("decode state: its window of commands is too large")
	}
	return s, nil
}

// canonical encodes v with sorted members. Numbers stay as they were written: those of a newer version may be longer
// than a float64 can hold.
func canonical(v any) ([]byte, error) {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	value := jsontext.Value(raw)
	err = value.Format(jsontext.ReorderRawObjects(true), jsontext.CanonicalizeRawInts(false),
		jsontext.CanonicalizeRawFloats(false), jsontext.PreserveRawStrings(false))
	return value, err
}

// parseMark reads what Advertise wrote.
func parseMark(raw []byte) (mark, error) {
	var m mark
	if len(raw) > maxMark {
		return m, fmt.Errorf("%d bytes, at most %d are allowed", len(raw), maxMark)
	}
	return m, json.Unmarshal(raw, &m)
}
