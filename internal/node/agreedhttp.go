package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/policy"
	"github.com/kvmesh/kvmesh/mesh"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// handleAgreed adds what operators change the agreed state by. No page of another origin can.
func (n *Node) handleAgreed(mux *http.ServeMux) {
	a := n.agreement
	mux.Handle("GET /debug/policy", n.guard(jsonOf(func() any { return a.policyAnswer() })))
	for path, change := range map[string]func(context.Context, *http.Request) (any, error){
		"/debug/policy":          a.postPolicy,
		"/debug/policy/try":      a.tryPolicy,
		"/debug/policy/rollback": a.postRollback,
		"/debug/cordon":          a.postCordon,
		"/debug/uncordon":        a.postUncordon,
		"/debug/revoke":          a.postRevoke,
		"/debug/geometry":        a.postGeometry,
		"/debug/scheme":          a.postScheme,
	} {
		mux.Handle("POST "+path, n.guard(http.NewCrossOriginProtection().Handler(answering(change))))
	}
}

// answering answers with what f returns, or with its error. A change goes on when its caller goes away: it may be decided already.
func answering(f func(context.Context, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, policy.MaxBytes+1)
		value, err := f(context.WithoutCancel(r.Context()), r)
		if err != nil {
			http.Error(w, err.Error(), statusOf(err))
			return
		}
		jsonOf(func() any { return value }).ServeHTTP(w, r)
	})
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, agreed.ErrNoQuorum), errors.Is(err, agreed.ErrStopped):
		return http.StatusServiceUnavailable
	case errors.Is(err, agreed.ErrRefused), errors.Is(err, agreed.ErrNewerVersion):
		return http.StatusConflict
	case errors.Is(err, errUnknownTarget):
		return http.StatusNotFound
	default:
		return http.StatusBadRequest
	}
}

// PolicyAnswer is the policy in force and those before it: GET /debug/policy.
type PolicyAnswer struct {
	PolicyStatus
	Text    string         `json:"text"`
	History []AgreedPolicy `json:"history"` // agreed ones, newest first; the first is the latest, in force unless there is trouble
}

// AgreedPolicy is one of the policies that the mesh has agreed on.
type AgreedPolicy struct {
	Index  uint64    `json:"index"`
	Author string    `json:"author"`
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
}

func (a *agreement) policyAnswer() PolicyAnswer {
	p := a.policyInForce()
	out := PolicyAnswer{PolicyStatus: p.PolicyStatus, Text: p.text, History: []AgreedPolicy{}}
	s := a.group.State()
	add := func(p agreed.Policy) {
		out.History = append(out.History, AgreedPolicy{Index: p.Index, Author: p.Author, Time: p.Time, Text: p.Text})
	}
	if s.Policy.Text != "" {
		add(s.Policy)
	}
	for _, p := range slices.Backward(s.History) {
		add(p)
	}
	return out
}

// ChangeAnswer is the index of the command that made a change.
type ChangeAnswer struct {
	Index uint64 `json:"index"`
}

// postPolicy answers POST /debug/policy?author=NAME&based_on=INDEX with a policy as its body.
func (a *agreement) postPolicy(ctx context.Context, r *http.Request) (any, error) {
	text, err := policyOf(r)
	if err != nil {
		return nil, err
	}
	basedOn, err := number(r.URL.Query(), "based_on")
	if err != nil {
		return nil, err
	}
	return a.change(ctx, agreed.Command{
		Kind: agreed.KindPolicy, Author: author(r), BasedOn: basedOn, Policy: &agreed.Policy{Text: text},
	})
}

// policyOf reads the policy in a request's body, which must be a good one.
func policyOf(r *http.Request) (string, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(string(text)) == "" {
		return "", errors.New("the body must be a policy; {} is one that changes nothing")
	}
	_, err = policy.Parse(text)
	return string(text), err
}

func (a *agreement) change(ctx context.Context, c agreed.Command) (any, error) {
	result, err := a.propose(ctx, c)
	return ChangeAnswer{result.Index}, err
}

// postRollback answers POST /debug/policy/rollback?to=INDEX; without an index it is the policy before the present one.
func (a *agreement) postRollback(ctx context.Context, r *http.Request) (any, error) {
	to, err := number(r.URL.Query(), "to")
	if err != nil {
		return nil, err
	}
	s := a.group.State()
	if to == 0 {
		if len(s.History) == 0 {
			return nil, errors.New("there is no policy to go back to")
		}
		to = s.History[len(s.History)-1].Index
	}
	return a.change(ctx, agreed.Command{Kind: agreed.KindRollback, Author: author(r), To: to, BasedOn: s.Policy.Index})
}

// TryAnswer says which of the last decisions of this agent a policy would have changed.
type TryAnswer struct {
	Decisions int           `json:"decisions"` // that were tried
	Unsure    int           `json:"unsure"`    // of those, how many would be routed otherwise, and to which engine cannot be said
	Changes   []TriedChange `json:"changes"`   // newest first
}

// TriedChange is one decision that would have been another.
type TriedChange struct {
	Time  time.Time     `json:"time"`
	ID    string        `json:"id"`
	Model string        `json:"model"`
	Was   forward.Route `json:"was"`
	Would forward.Route `json:"would"`
}

// tryPolicy answers POST /debug/policy/try with a policy as its body. Nothing changes.
func (a *agreement) tryPolicy(_ context.Context, r *http.Request) (any, error) {
	text, err := policyOf(r)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	out := TryAnswer{Changes: []TriedChange{}}
	for _, e := range a.n.recorder.Events() {
		was, would, ok := e.Redecide(p)
		if !ok {
			continue
		}
		out.Decisions++
		if was == would {
			continue
		}
		if would.Engine == "" {
			out.Unsure++
		}
		out.Changes = append(out.Changes, TriedChange{Time: e.Time, ID: e.ID, Model: e.Model, Was: was, Would: would})
	}
	return out, nil
}

// postCordon answers POST /debug/cordon?target=NAME&reason=WHY&for=DURATION.
func (a *agreement) postCordon(ctx context.Context, r *http.Request) (any, error) {
	q := r.URL.Query()
	target := targetNamed(q.Get("target"))
	if q.Get("force") == "" {
		if err := a.know(target); err != nil {
			return nil, err
		}
	}
	c := CordonStatus{
		Engine: target.Engine, Agent: target.Agent, Reason: q.Get("reason"), Author: author(r), Since: time.Now().UTC().Truncate(time.Millisecond),
	}
	if text := q.Get("for"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("for (%q) must be a duration above 0, such as 1h", text)
		}
		c.Expiry = c.Since.Add(d)
	}
	check := agreed.Command{ID: "x", Kind: agreed.KindCordon, Author: c.Author, Cordon: &agreed.Cordon{Target: target, Reason: c.Reason}}
	if err := check.Validate(); err != nil {
		return nil, err
	}
	return a.cordon(ctx, c)
}

// postUncordon answers POST /debug/uncordon?target=NAME.
func (a *agreement) postUncordon(ctx context.Context, r *http.Request) (any, error) {
	return a.uncordon(ctx, targetNamed(r.URL.Query().Get("target")), author(r))
}

// postRevoke answers POST /debug/revoke?serial=HEX&reason=WHY.
func (a *agreement) postRevoke(ctx context.Context, r *http.Request) (any, error) {
	q := r.URL.Query()
	serial, err := mesh.ParseSerial(q.Get("serial"))
	if err != nil {
		return nil, err
	}
	return a.change(ctx, agreed.Command{
		Kind: agreed.KindRevoke, Author: author(r), Revoked: &agreed.Revoked{Serial: strings.ToLower(serial), Reason: q.Get("reason")},
	})
}

// author is who says to make a change: whoever has the debug server's token can say what he likes.
func author(r *http.Request) string { return r.URL.Query().Get("author") }

func number(q url.Values, name string) (uint64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s (%q) must be a number", name, text)
	}
	return n, nil
}
