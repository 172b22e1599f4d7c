package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// Booker books load at one engine. Its methods are safe for concurrent use.
type Booker interface {
	// Admit accepts the request and books it, or refuses with a Refused.
	Admit(Admission) (Booking, engine.Load, error)
	// Load returns the load of the engine now.
	Load() engine.Load
	// Alive returns a context that ends, with its cause, when requests on the engine are to be given up: it hangs.
	Alive() context.Context
	// NoteUnreachable tells that the engine refused a connection, so that its health is looked at now.
	NoteUnreachable()
}

// Refused says why an engine did not take a request, in one of a closed set of words.
type Refused string

// Error implements error.
func (r Refused) Error() string { return string(r) }

// Admission is what a booker needs to know of a request.
type Admission struct {
	Prompt        *cachestate.Prompt
	Generation    engine.Generation // 0 when the decision saw no digest
	QueuedAtProbe float64           // seconds; negative when the engine was not probed
	Media         bool              // the prompt's bytes say little of its tokens
	Second        bool              // a second owner accepts unless down, draining, full or ejected
	Forced        bool              // an ejected engine takes it: too few others are left

	Route  openai.Route
	Traits openai.Traits
	Model  string // as the client wrote it
	Salt   string
	LoRA   string
}

// Booking is the load of one accepted request. Finish may be called more than once; only the first call counts.
type Booking interface {
	// Turn waits until the request may go to the engine. An error that is no end of ctx says that the engine went down.
	Turn(ctx context.Context) error
	// GivenUp returns a context that ends when the engine is found to accept and not to answer, as long as no content has come,
	// or is ejected before the request's turn. The request has failed then, and content that comes is not passed on.
	GivenUp() context.Context
	// FirstContent tells that content of the answer came. The first call says that the prefill is done, the others that
	// the engine is alive.
	FirstContent()
	// Finish undoes the booking.
	Finish(Outcome)
	// Ask returns what is to be added to the request so that its answer teaches.
	Ask() openai.Ask
	// AskRefused tells that the engine refused the request for a field that was added.
	AskRefused(field string)
	// NoteBody shows the body of the request, as the client wrote it, before it is sent. It copies what it keeps, and returns
	// at once.
	NoteBody(body []byte)
	// AskTokens returns what is to be added to a streamed request so that its answer has the ids of the prompt and of each
	// token; nothing where the engine does not tell them.
	AskTokens() openai.Ask
	// WantsPrompt reports whether the prompt's token ids would teach something.
	WantsPrompt() bool
	// Learn takes them, and the CPU time that it took to read them.
	Learn(promptIDs []uint32, cost time.Duration)
}

// Outcome is what is known when a request has ended.
type Outcome struct {
	Usage    openai.Usage
	HasUsage bool
	Refused  bool // the engine answered that the request is wrong: a status of 400 to 499, save 429
	Failed   bool // the engine gave no complete answer: nothing is learned from it
	Whole    bool // the content came all at once: its time says nothing of the prefill
}

// LocalEngine is an engine beside this agent.
type LocalEngine struct {
	Name   string
	URL    *url.URL // scheme, host and a path prefix
	APIKey string   // sent instead of what the client sent
	Booker Booker

	// Rank is the data-parallel rank of the server that is this engine, nil when the engine is the whole server.
	Rank *int
	// Kind returns the software that the engine runs, as far as it is known: ranks are addressed in different ways. It may
	// be nil where Rank is.
	Kind func() engine.Kind
}

// Owner serves requests on the engines of this agent, for its own ingress and for peers. It is safe for concurrent use.
type Owner struct {
	engines map[string]LocalEngine
	client  *http.Client
	maxBody int
	bodies  *budget
	short   func() bool     // of memory: nothing new is taken of peers
	cut     context.Context // of the ingress: it ends, with its cause, when what still runs is to end
}

// engineIdle is how long a connection to an engine is kept for the next request. Engines close theirs after 5 s (uvicorn's
// default); a connection kept longer than that would meet the next request with a reset.
const engineIdle = 4 * time.Second

// NewEngineTransport returns the transport for requests to engines.
func NewEngineTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     engineIdle,
		DisableCompression:  true, // the client gets the bytes that the engine sent
		// What a peer reads of a header; the default of net/http would let an engine fill 10 MB for each request.
		MaxResponseHeaderBytes: maxHeaderText,
		ExpectContinueTimeout:  time.Second,
	}
}

func newOwner(cut context.Context, c *Config, bodies *budget) *Owner {
	o := &Owner{
		engines: map[string]LocalEngine{},
		maxBody: c.MaxBody,
		bodies:  bodies,
		short:   c.ShortOfMemory,
		cut:     cut,
		client: &http.Client{
			Transport: c.Transport,
			// An engine that redirects would make the agent dial where the engine, or whoever answers for it, says.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	for _, e := range c.Engines {
		o.engines[e.Name] = e
	}
	return o
}

// receiver takes an answer as it comes. An error from it ends the request.
type receiver interface {
	accepted(engine.Load) error
	head(*head) error
	data(b []byte, content bool) error
	// tokens tells the ids of the prompt, or of the content of the next call of data. It keeps nothing of its argument. It is
	// only called when the call asks for tokens.
	tokens(*tokens) error
}

// bounce says that an owner did not accept, or that the engine went down while the request waited for its turn: nothing was
// sent to the engine.
type bounce struct {
	verdict
}

func (b *bounce) Error() string { return "bounced: " + b.Reason }

// failure says that an engine, or the way to it, failed after the accept. Reason is one of a closed set of words.
type failure struct {
	Reason string
	Err    error
}

func (f *failure) Error() string { return fmt.Sprintf("%s: %v", f.Reason, f.Err) }
func (f *failure) Unwrap() error { return f.Err }

// serve books the request, hands it to the engine when it is its turn, and passes the answer on. The error is a *bounce when
// the engine was not asked, a *failure when it failed, or what the receiver returned. The booking is undone on every path.
func (o *Owner) serve(ctx context.Context, c *call, body func() ([]byte, error), to receiver) (ending, error) {
	e, ok := o.engines[c.Engine]
	if !ok {
		return ending{}, &bounce{verdict{Reason: "unknown"}}
	}
	if c.Continues && !e.continues(c) {
		return ending{}, &bounce{verdict{Reason: "cannot_continue", Load: e.Booker.Load()}}
	}
	target, ok := engineURL(e.URL, c)
	if !ok {
		return ending{}, &bounce{verdict{Reason: "not_allowed", Load: e.Booker.Load()}}
	}
	if load := e.Booker.Load(); c.Left > 0 && load.QueuedSeconds > c.Left.Seconds() {
		return ending{}, &bounce{verdict{Reason: "deadline", Load: load}}
	}
	booking, load, err := admit(e, c)
	if err != nil {
		return ending{}, &bounce{verdict{Reason: err.Error(), Load: load}}
	}
	outcome, client, status := Outcome{Failed: true}, ctx, 0
	defer func() {
		// A client that goes away is no failure of the engine, unless the engine had failed before.
		outcome.Failed = engineFault(status) || (outcome.Failed && client.Err() == nil)
		booking.Finish(outcome)
	}()
	if err := to.accepted(load); err != nil {
		outcome.Failed = false
		return ending{}, err
	}
	b, err := body()
	if err != nil {
		outcome.Failed = false // of the peer, or of the way to it: the engine was not asked
		return ending{}, &failure{"truncated_body", err}
	}
	if c.Continues {
		if b = o.continuing(ctx, &e, c, b); b == nil {
			outcome.Failed = false
			return ending{}, &bounce{verdict{Reason: "cannot_continue", Load: e.Booker.Load()}}
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := e.Booker.Alive()
	defer context.AfterFunc(alive, func() { cancel(context.Cause(alive)) })()
	givenUp := booking.GivenUp()
	defer context.AfterFunc(givenUp, func() { cancel(context.Cause(givenUp)) })()
	if err := booking.Turn(ctx); err != nil {
		outcome.Failed = false // the engine was not asked
		return ending{}, e.notSent(ctx, booking, err)
	}
	l := newLearner(booking, c)
	resp, err := l.send(b, func(body []byte) (*http.Response, error) { return o.ask(ctx, e, target, c, body) })
	if err != nil {
		return ending{}, orStuck(booking, engineFailure(e, err))
	}
	defer func() { resp.Body.Close() }()
	status = resp.StatusCode
	if c.sent != nil {
		c.sent()
	}
	if err := l.prepare(resp); err != nil {
		return ending{}, orStuck(booking, &failure{"reset", err})
	}
	if err := to.head(&head{status, answerHeader(resp.Header)}); err != nil {
		outcome = Outcome{Refused: status >= http.StatusBadRequest && !engineFault(status)}
		return ending{}, err
	}
	outcome, err = o.relay(resp, l, to)
	if err != nil {
		err = orStuck(booking, err)
		_, outcome.Failed = errors.AsType[*failure](err) // other errors are the receiver's: nobody takes the answer any more
		return ending{}, err
	}
	booking.Finish(outcome)
	failed := outcome.Failed && status < 300
	return ending{Usage: outcome.Usage, HasUsage: outcome.HasUsage, Failed: failed, Load: e.Booker.Load(), Trailer: answerTrailer(resp.Trailer)}, nil
}

// orStuck returns err, or that the engine was found stuck where that is why.
func orStuck(b Booking, err error) error {
	if cause := context.Cause(b.GivenUp()); cause != nil {
		return &failure{"stuck", cause}
	}
	return err
}

// notSent says why a request whose turn did not come was not sent to the engine. One that went down or is stuck, or whose agent
// stops, has bounced it after all, so that it may be tried elsewhere even if it must not be done twice.
func (e *LocalEngine) notSent(ctx context.Context, b Booking, err error) error {
	switch {
	case b.GivenUp().Err() != nil:
		return &bounce{verdict{Reason: "ejected", Load: e.Booker.Load()}}
	case isStop(context.Cause(ctx)):
		return &bounce{verdict{Reason: "draining", Load: e.Booker.Load()}}
	case ctx.Err() != nil:
		return &failure{"reset", err}
	default:
		return &bounce{verdict{Reason: "down", Load: e.Booker.Load()}}
	}
}

// engineFault reports whether a status is the engine's fault and not the request's.
func engineFault(status int) bool { return status >= 500 || status == http.StatusTooManyRequests }

// admit books the request. Looking up what is stored takes no place at the engine.
func admit(e LocalEngine, c *call) (Booking, engine.Load, error) {
	if c.Method == http.MethodGet {
		return noBooking{}, e.Booker.Load(), nil
	}
	return e.Booker.Admit(Admission{
		Prompt: &c.Prompt, Generation: c.Generation, QueuedAtProbe: c.QueuedAtProbe, Media: c.Media, Second: c.Second, Forced: c.Forced,
		Route: c.route(), Traits: c.Traits, Model: c.Model, Salt: c.Salt, LoRA: c.LoRA,
	})
}

type noBooking struct{}

func (noBooking) Turn(context.Context) error    { return nil }
func (noBooking) GivenUp() context.Context      { return context.Background() }
func (noBooking) FirstContent()                 {}
func (noBooking) Finish(Outcome)                {}
func (noBooking) Ask() openai.Ask               { return openai.Ask{} }
func (noBooking) AskTokens() openai.Ask         { return openai.Ask{} }
func (noBooking) AskRefused(string)             {}
func (noBooking) NoteBody([]byte)               {}
func (noBooking) WantsPrompt() bool             { return false }
func (noBooking) Learn([]uint32, time.Duration) {}

// engineURL returns where a request goes at the engine. It is false unless method and path are those of a route that
// clients may use: the engine's key, which is sent along, opens others.
func engineURL(base *url.URL, c *call) (string, bool) {
	path, query, _ := strings.Cut(c.Path, "?")
	if _, bad := openai.RouteFor(c.Method, path); bad != nil {
		return "", false
	}
	u := *base
	u.Path, u.RawPath, u.RawQuery = strings.TrimSuffix(base.Path, "/")+path, "", query
	return u.String(), true
}

// rankHeader addresses a data-parallel rank of vLLM.
const rankHeader = "X-Data-Parallel-Rank"

// rankRoutes are those on which SGLang reads a rank from the body.
var rankRoutes = []openai.Route{openai.RouteChat, openai.RouteCompletions}

// address makes a request one for the engine's rank.
func (e *LocalEngine) address(h http.Header, c *call, body []byte) []byte {
	switch {
	case e.Rank == nil:
	case e.Kind() != engine.KindSGLang:
		h.Set(rankHeader, strconv.Itoa(*e.Rank))
	case slices.Contains(rankRoutes, c.route()):
		return openai.ForRank(body, *e.Rank)
	}
	return body
}

// ask sends the request to the engine. A kept connection that the engine has closed meanwhile is replaced once: the nil
// Idempotency-Key lets the transport send a POST again when no byte of an answer came, and is not itself sent. What must
// not be done twice is not sent again.
func (o *Owner) ask(ctx context.Context, e LocalEngine, target string, c *call, body []byte) (*http.Response, error) {
	header := engineHeader(c.Header)
	body = e.address(header, c, body)
	req, err := http.NewRequestWithContext(ctx, c.Method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if len(body) > keptBody {
		req.Body = newOutgoing(body)
		req.GetBody = func() (io.ReadCloser, error) { return newOutgoing(body), nil }
	}
	req.Header = header
	if c.Method != http.MethodGet && !c.Once {
		req.Header["Idempotency-Key"] = nil
	}
	req.Header.Set("X-Request-Id", c.ID)
	req.Header.Set(hopsHeader, strconv.Itoa(maxHops))
	if e.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.APIKey)
	}
	resp, err := o.client.Do(req)
	body = nil // the transport keeps GetBody, and asks it for nothing more
	return resp, err
}

func engineFailure(e LocalEngine, err error) error {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		e.Booker.NoteUnreachable()
		return &failure{"refused", err}
	}
	return &failure{"reset", err}
}

// relay passes the engine's answer on: event by event when it is a stream, else as it comes.
func (o *Owner) relay(resp *http.Response, l *learner, to receiver) (Outcome, error) {
	if streams(resp) {
		return relayEvents(resp.Body, l, to)
	}
	return relayWhole(resp, l, to)
}

func streams(resp *http.Response) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
}

// usageWindow is how much of an answer that is no stream is kept to read its usage. Answers above it teach nothing.
const usageWindow = 4 << 20

func relayWhole(resp *http.Response, l *learner, to receiver) (Outcome, error) {
	good := resp.StatusCode < 300
	var kept []byte
	empty := good && resp.StatusCode != http.StatusNoContent
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			empty = false
			if good {
				l.b.FirstContent()
				if err := context.Cause(l.b.GivenUp()); err != nil {
					return Outcome{Failed: true}, err
				}
			}
			if len(kept)+n <= usageWindow {
				kept = append(kept, buf[:n]...)
			}
			if err := to.data(buf[:n], true); err != nil {
				return Outcome{Failed: true}, err
			}
		}
		if errors.Is(err, io.EOF) {
			if empty {
				return Outcome{Failed: true}, &failure{"truncated", errEmpty}
			}
			if good {
				l.learn()
			}
			usage, ok := openai.ParseUsage(l.route, kept)
			fault := engineFault(resp.StatusCode)
			return Outcome{Usage: usage, HasUsage: ok && good, Refused: !good && !fault, Failed: fault, Whole: true}, nil
		}
		if err != nil {
			return Outcome{Failed: true}, &failure{"reset", err}
		}
	}
}

// eventBuffer is the most of a stream that is read at once: tens of events that wait. Each stream has one.
const eventBuffer = 16 << 10

// eventLimit bounds one line of an engine's event stream: the token ids of a very long prompt come in one line.
const eventLimit = 32 << 20

func relayEvents(body io.Reader, l *learner, to receiver) (Outcome, error) {
	events := openai.NewStream(l.route, eventLimit)
	buf := make([]byte, eventBuffer)
	var out []byte
	content, failed, done := false, false, false
	for {
		n, err := body.Read(buf)
		out = out[:0]
		var late error
		feedErr := events.Feed(buf[:n], func(e openai.Event) bool {
			if e.Failed && content && l.tap != nil { // another engine may go on, and then the client need not know
				late = errStreamFailed
				return false
			}
			out = l.event(out, e.Raw)
			if content = content || e.Content; content {
				l.b.FirstContent()
			}
			failed = failed || e.Failed
			done = done || e.Done
			return true
		})
		if err := context.Cause(l.b.GivenUp()); err != nil {
			return Outcome{Failed: true}, err
		}
		if err != nil {
			out = l.flush(out)
		}
		if len(out) > 0 {
			if err := l.pass(out, content, to); err != nil {
				return Outcome{Failed: true}, err
			}
		}
		if content {
			l.learn()
		}
		switch {
		case feedErr != nil:
			return Outcome{Failed: true}, &failure{"bad_event", feedErr}
		case late != nil:
			return Outcome{Failed: true}, &failure{"stream_error", late}
		case errors.Is(err, io.EOF):
			return finishEvents(events, failed, done)
		case err != nil:
			return Outcome{Failed: true}, &failure{"reset", err}
		}
	}
}

var (
	errNoEnd        = errors.New("the stream ended without its last event")
	errEmpty        = errors.New("the answer is empty") // no route's is, but that of a server that ends while it answers
	errStreamFailed = errors.New("the engine reported an error inside the stream")
)

// finishEvents looks whether the stream is whole: an engine that dies may still close its connection in order.
func finishEvents(events *openai.Stream, failed, done bool) (Outcome, error) {
	err := events.Close()
	if err == nil && !done && !failed {
		err = errNoEnd
	}
	if err != nil {
		return Outcome{Failed: true}, &failure{"truncated", err}
	}
	usage, ok := events.Usage()
	return Outcome{Usage: usage, HasUsage: ok, Failed: failed}, nil
}

// route returns the route of the call's path; none when clients may not use it.
func (c *call) route() openai.Route {
	route, _ := openai.RouteFor(c.Method, pathOnly(c.Path))
	return route
}

func pathOnly(p string) string {
	path, _, _ := strings.Cut(p, "?")
	return path
}

// load returns the load of an engine of this agent now; was when there is no such engine any more.
func (o *Owner) load(name string, was engine.Load) engine.Load {
	if e, ok := o.engines[name]; ok {
		return e.Booker.Load()
	}
	return was
}

// Report returns the loads of all engines of this agent: the answer to a probe.
func (o *Owner) Report(period time.Duration) Report {
	r := Report{Period: period}
	for name, e := range o.engines {
		r.Loads = append(r.Loads, EngineLoad{name, e.Booker.Load()})
	}
	return r
}
