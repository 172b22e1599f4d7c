package agreed

import (
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Kind says what a command changes.
type Kind string

// The kinds of commands, and the fields that each reads besides ID and Author.
const (
	KindPolicy           Kind = "policy"            // Policy, BasedOn
	KindRollback         Kind = "rollback"          // To, BasedOn
	KindGeometry         Kind = "geometry"          // Geometry: begin a change, in PhaseBoth
	KindGeometrySwitch   Kind = "geometry_switch"   // from PhaseBoth to PhaseSwitched
	KindGeometryFinish   Kind = "geometry_finish"   // from PhaseSwitched to PhaseStable, on the next one
	KindGeometryRollback Kind = "geometry_rollback" // from any phase to PhaseStable, on the current one
	KindScheme           Kind = "scheme"            // Model, Scheme: begin a window
	KindSchemeFinish     Kind = "scheme_finish"     // Model: the next one alone
	KindSchemeRollback   Kind = "scheme_rollback"   // Model: the current one alone
	KindCordon           Kind = "cordon"            // Cordon; replaces what is on its target
	KindUncordon         Kind = "uncordon"          // Target
	KindRevoke           Kind = "revoke"            // Revoked
	KindAPIKeys          Kind = "api_keys"          // APIKeys: above the present version

	// Only a leader proposes these.
	kindFound Kind = "found" // Model: the name of the group
	kindRaise Kind = "raise" // To: the version that all voters know
	kindEpoch Kind = "epoch" // after a recovery
)

const (
	maxCommand   = 320 << 10 // encoded
	maxPolicy    = 256 << 10 // a policy of a thousand rules is 100 KiB
	maxName      = 256       // author, engine, agent, model
	maxReason    = 1024
	maxScheme    = 16 << 10
	maxCordons   = 1024
	maxRevoked   = 1024
	maxSchemes   = 64
	maxIDBytes   = 64
	maxHashCount = 32
)

// Command is one change of the state. Propose fills ID where it is empty, and the leader sets Time.
type Command struct {
	ID      string    `json:"id"` // letters, digits, '.', '_', '-', at most 64; a repeat within the last 1,024 commands does nothing
	Version int       `json:"version,omitzero"`
	Kind    Kind      `json:"kind"`
	Author  string    `json:"author,omitzero"`
	Time    time.Time `json:"time,omitzero"`

	// What is kept comes as a value of the state, so that members which only a newer version knows are kept with it. Author
	// and times within are set when the command is applied.
	Policy   *Policy   `json:"policy,omitzero"`
	Geometry *Geometry `json:"geometry,omitzero"`
	Scheme   *Scheme   `json:"scheme,omitzero"`
	Cordon   *Cordon   `json:"cordon,omitzero"`
	Revoked  *Revoked  `json:"revoked,omitzero"`

	BasedOn uint64 `json:"based_on,omitzero"` // Index of the policy that must still be in force; 0: any
	To      uint64 `json:"to,omitzero"`       // Index of the policy to go back to
	Model   string `json:"model,omitzero"`
	Target  Target `json:"target,omitzero"`
	APIKeys uint64 `json:"api_keys,omitzero"`

	Unknown jsontext.Value `json:",embed"`
}

var (
	validID     = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	validSerial = regexp.MustCompile(`^[0-9a-f]{1,64}$`)
)

// Validate reports all that is wrong with c by itself; what depends on the state is found when it is applied.
func (c *Command) Validate() error {
	errs := []error{
		check(validID.MatchString(c.ID), "id %.80q must be 1 to %d letters, digits, '.', '_' or '-'", c.ID, maxIDBytes),
		check(len(c.Author) <= maxName, "author is longer than %d bytes", maxName),
		check(utf8.ValidString(c.Author+c.Model), "author or model is not UTF-8"),
	}
	if err := errors.Join(append(errs, c.validateKind())...); err != nil {
		return fmt.Errorf("%s command: %w", c.Kind, err)
	}
	return nil
}

func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// validateKind checks the fields that the kind reads. Its length is that of the list of kinds.
func (c *Command) validateKind() error {
	switch c.Kind {
	case KindPolicy:
		return check(c.Policy != nil && c.Policy.Text != "" && len(c.Policy.Text) <= maxPolicy && utf8.ValidString(c.Policy.Text),
			"policy must have 1 to %d bytes of UTF-8", maxPolicy)
	case KindRollback, kindRaise:
		return check(c.To > 0, "To must be set")
	case KindGeometry:
		return check(c.Geometry != nil && c.Geometry.Bits > 0 && c.Geometry.Hashes > 0 && c.Geometry.Hashes <= maxHashCount,
			"geometry must have bits, and 1 to %d hashes", maxHashCount)
	case KindScheme:
		return errors.Join(c.validateModel(), check(c.Scheme != nil && len(c.Scheme.Seed)+len(c.Scheme.Layout) <= maxScheme,
			"scheme must be set, and seed and layout have at most %d bytes", maxScheme))
	case KindSchemeFinish, KindSchemeRollback, kindFound:
		return c.validateModel()
	case KindCordon:
		if c.Cordon == nil {
			return errors.New("cordon must be set")
		}
		return errors.Join(c.Cordon.Target.validate(), validateReason(c.Cordon.Reason))
	case KindUncordon:
		return c.Target.validate()
	case KindRevoke:
		if c.Revoked == nil || !validSerial.MatchString(c.Revoked.Serial) {
			return errors.New("serial must be lower-case hexadecimal, at most 64 digits")
		}
		return validateReason(c.Revoked.Reason)
	case KindAPIKeys:
		return check(c.APIKeys > 0, "version of the API-key set must be above 0")
	case KindGeometrySwitch, KindGeometryFinish, KindGeometryRollback, kindEpoch:
		return nil
	default:
		return errUnknownKind
	}
}

func (t Target) validate() error {
	name := t.Engine + t.Agent
	return check((t.Engine == "") != (t.Agent == "") && len(name) <= maxName && utf8.ValidString(name),
		"target must be an engine or an agent, with a name of at most %d bytes", maxName)
}

func validateReason(reason string) error {
	return check(len(reason) <= maxReason && utf8.ValidString(reason), "reason must have at most %d bytes of UTF-8", maxReason)
}

func (c *Command) validateModel() error {
	return check(c.Model != "" && len(c.Model) <= maxName, "model must have 1 to %d bytes", maxName)
}

// internal reports whether only a leader may propose c.
func (c *Command) internal() bool {
	return c.Kind == kindFound || c.Kind == kindRaise || c.Kind == kindEpoch
}

var errUnknownKind = errors.New("this version does not know such a command")

func encodeCommand(c *Command) ([]byte, error) {
	raw, err := canonical(c)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	if len(raw) > maxCommand {
		return nil, fmt.Errorf("command has %d bytes, at most %d are allowed", len(raw), maxCommand)
	}
	return raw, nil
}

func decodeCommand(raw []byte) (*Command, error) {
	if len(raw) > maxCommand {
		return nil, fmt.Errorf("command has %d bytes, at most %d are allowed", len(raw), maxCommand)
	}
	c := new(Command)
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, fmt.Errorf("decode command: %w", err)
	}
	return c, nil
}
