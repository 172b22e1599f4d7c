package forward

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// Config is what an Ingress is made of.
type Config struct {
	Agent     string            // name of this agent
	Zone      string            // where it stands; "" when nobody said
	Scheme    cachestate.Scheme // of prompt keys, until SetKeyings
	View      *View
	Index     *cachestate.Tiers
	Peers     Peers
	Engines   []LocalEngine     // beside this agent; none for an ingress-only agent
	Transport http.RoundTripper // to engines; nil for NewEngineTransport

	MaxBody      int           // bytes of one request body
	BodyBudget   int64         // bytes of all request bodies held at once
	QueueLimit   int           // requests held while all engines are full
	QueueBytes   int64         // bytes of their bodies, which are in BodyBudget too
	QueueTimeout time.Duration // how long each of them is held, unless its class says otherwise
	Timeout      time.Duration // of a whole request
	Explain      bool          // send x-kvmesh-engine, -overlap and -reason with answers
	Policy       Policy        // how which kind of traffic is routed, until SetPolicy

	// ShortOfMemory reports whether new requests are to be refused, so that those taken in can be finished; nil for never.
	ShortOfMemory func() bool

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Record     func(Event) // gets every ended request; must not block
}

// DefaultConfig returns the limits in use. Agent, View, Index, Peers and the rest are the caller's.
func DefaultConfig() Config {
	return Config{
		Scheme:       cachestate.DefaultScheme(),
		MaxBody:      64 << 20,         // a 1 M token prompt is 4 MB; images are the larger part
		BodyBudget:   512 << 20,        // an agent shares its host with an engine
		QueueLimit:   512,              // at one second each, what 64 slots work off within the time below
		QueueBytes:   256 << 20,        // half of the budget: what runs needs room too
		QueueTimeout: 10 * time.Second, // longer than a burst, shorter than the patience of a client with retries
		Timeout:      30 * time.Minute, // the longest answers; a hung engine holds its request that long
		Explain:      true,
	}
}

// Validate reports every violation among the limits, each with the name of its field.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.MaxBody > 0 && c.MaxBody <= 1<<30, "MaxBody (%d) must be 1 to 1 GiB", c.MaxBody)
	check(c.BodyBudget >= int64(c.MaxBody), "BodyBudget (%d) must be at least MaxBody (%d)", c.BodyBudget, c.MaxBody)
	check(c.QueueLimit >= 0, "QueueLimit (%d) must not be negative", c.QueueLimit)
	check(c.QueueBytes >= 0, "QueueBytes (%d) must not be negative", c.QueueBytes)
	check(c.QueueTimeout > 0, "QueueTimeout (%v) must be above 0", c.QueueTimeout)
	check(c.Timeout > 0, "Timeout (%v) must be above 0", c.Timeout)
	check(engine.CheckZone(c.Zone) == nil, "Zone (%q) must be a name of at most %d bytes", c.Zone, engine.MaxZone)
	return errors.Join(append(errs, c.Policy.Validate())...)
}

// maxHeaderBytes bounds the header of a client's request. The server in front must allow somewhat more, so that the
// refusal has the API's own shape.
const maxHeaderBytes = 64 << 10

// Ingress is the http.Handler that takes requests in: it parses, decides and carries them, and observes how they end.
// Owner is the other half: it serves requests, of this ingress and of peers, on the engines beside this agent.
type Ingress struct {
	Config
	policy  atomic.Pointer[inForce]
	keyings atomic.Pointer[keyings]

	Owner *Owner

	room    *waitRoom
	metrics *metrics
	classes classes
	doubts  doubts

	questions questions
	bodies    *budget
	active    atomic.Int64 // requests
	warned    atomic.Int64 // when a failed request was last warned of; Unix time in ns
	cut       context.Context
	cutNow    context.CancelCauseFunc
	probing   sync.WaitGroup
}

// Wait blocks until what outlived its requests has ended: probes, for at most an accept deadline, and the keepers of queues.
func (g *Ingress) Wait() {
	g.probing.Wait()
	g.room.keepers.Wait()
}

// New returns an Ingress and its Owner. It starts nothing.
func New(c Config) (*Ingress, error) {
	if c.View == nil || c.Index == nil || c.Peers == nil {
		return nil, errors.New("forward config: View, Index and Peers must be set")
	}
	if c.Transport == nil {
		c.Transport = NewEngineTransport()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.ShortOfMemory == nil {
		c.ShortOfMemory = func() bool { return false }
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("forward config: %w", err)
	}
	g := &Ingress{Config: c, bodies: &budget{limit: c.BodyBudget}}
	g.room = newWaitRoom(bounds{c.QueueLimit, c.QueueBytes}, g)
	g.policy.Store(newInForce(&c.Policy, c.Explain))
	g.keyings.Store(&keyings{})
	g.classes.byName = map[string]*classState{}
	g.cut, g.cutNow = context.WithCancelCause(context.Background())
	g.Owner = newOwner(g.cut, &c, g.bodies)
	g.metrics = newMetrics(c.Registerer, g)
	return g, nil
}

// Cut ends the requests that still run, of clients and of peers: clients are told, in the stream where it has begun, and so
// are peers, which may have another engine answer. It is for the end of a drain.
func (g *Ingress) Cut() { g.cutNow(&failure{reasonStopped, errors.New("this agent stops")}) }

// reasonStopped is the reason of the requests that Cut has ended.
const reasonStopped = "agent_stopped"

// isStop reports whether err is the cause that Cut gives.
func isStop(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.Reason == reasonStopped
}

// Active returns the number of requests taken in and not ended yet, and how many of them wait for a free engine.
func (g *Ingress) Active() (inFlight, waiting int) { return int(g.active.Load()), g.room.len() }

// BodyBytes returns the bytes of request bodies that are held now, of clients and of peers.
func (g *Ingress) BodyBytes() int64 { return g.bodies.held.Load() }

// Outcomes of a request, as metrics and events name them. Others are the reason of the last failure.
const (
	outcomeOK         = "ok"
	outcomeBadRequest = "bad_request"
	outcomeCanceled   = "canceled"
	outcomeNotFound   = "not_found" // no engine has stored what the request names

	outcomeEngineRefused = "engine_refused" // the engine answered with a status from 400 to 499
	outcomeEngineError   = "engine_error"   // and up
)

// exchange is one request on its way through the ingress.
type exchange struct {
	g        *Ingress
	policy   *inForce
	ctx      context.Context
	w        http.ResponseWriter
	r        *http.Request
	start    time.Time
	rng      *rand.Rand
	request  *openai.Request
	body     heldBody
	prompt   cachestate.Prompt
	media    bool   // images, sound or video are part of it
	batch    bool   // several prompts: routed by the first, which says nothing of the rest
	model    string // canonical name
	traffic  Traffic
	session  string // that its body names
	class    *Class
	priority int // of the class
	q        Question
	ranked   []Candidate // of the last decision
	answer   *answer
	thread   *thread // nil when its class does not want it continued
	retries  int     // that waited before
	broken   bool    // the engine's answer ended with an error of its own
	event    Event

	mu       sync.Mutex         // guards what follows while attempts run
	place    *place             // in the wait room; nil until it had one
	taken    bool               // an owner has accepted it
	failed   map[engine.ID]bool // engines that are not tried again
	beside   engine.ID          // that runs while one for a hedge is looked for
	attempts int                // begun, without races
	races    int                // attempts at engines that another request had filled
	deaths   int                // of engines that had the request
}

// ServeHTTP takes a request in and blocks until its answer is complete.
func (g *Ingress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{
		g: g, policy: g.policy.Load(), w: w, r: r, start: time.Now(),
		rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	x.event = Event{Time: x.start, ID: requestID(r)}
	g.count(1)
	defer g.count(-1)
	defer x.observe()
	w.Header().Set("X-Request-Id", x.event.ID)
	// The server reads what is left of a body before it answers; whoever sends none must not hold the connection for that. Where there
	// is no body it reads on all the same, over HTTP/1.1, and a deadline would end the request.
	if r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(x.start.Add(bodyIdle))
	}
	route, bad := openai.RouteFor(r.Method, r.URL.Path)
	if bad == nil {
		bad = x.policy.checkRoute(route)
	}
	if bad == nil {
		bad = checkHeader(r)
	}
	if bad == nil && route != openai.RouteModels && g.ShortOfMemory() {
		bad = errMemory
	}
	if bad != nil {
		x.refuse(route, bad)
		return
	}
	x.event.Route = route.String()
	switch route {
	case openai.RouteModels:
		x.models()
	case openai.RouteResponseByID:
		x.lookUp(route)
	default:
		x.generate(route)
	}
}

func (g *Ingress) count(n int64) {
	g.active.Add(n)
	g.metrics.inFlight.Add(float64(n))
}

// requestID returns the client's x-request-id when it is short and plain, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	plain := func(c rune) bool { return c > ' ' && c < 0x7f }
	if id != "" && len(id) <= 128 && !slices.ContainsFunc([]rune(id), func(c rune) bool { return !plain(c) }) {
		return id
	}
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
}

// headerSize returns the bytes and the fields of a header.
func headerSize(h http.Header) (size, fields int) {
	for k, vs := range h {
		for _, v := range vs {
			size += len(k) + len(v) + 4
			fields++
		}
	}
	return size, fields
}

// checkHeader refuses what an owner would not read: headers and paths that are too long.
func checkHeader(r *http.Request) *openai.Error {
	size, fields := headerSize(r.Header)
	switch {
	case r.Header.Get(hopsHeader) != "":
		return &openai.Error{
			Status: http.StatusLoopDetected, Type: "server_error", Code: "loop_detected", Reason: "loop",
			Message: "this request comes from an agent, which takes this agent for an engine",
		}
	case size > maxHeaderBytes || fields > maxHeaders:
		return &openai.Error{
			Status: http.StatusRequestHeaderFieldsTooLarge, Type: "invalid_request_error", Code: "header_too_large", Reason: "header_size",
			Message: fmt.Sprintf("the request's header has %d bytes in %d fields; the limits are %d and %d", size, fields, maxHeaderBytes, maxHeaders),
		}
	case len(requestPath(r.URL)) > maxPath:
		return &openai.Error{
			Status: http.StatusRequestURITooLong, Type: "invalid_request_error", Code: "uri_too_long", Reason: "uri_size",
			Message: fmt.Sprintf("the request's path and query are longer than %d bytes", maxPath),
		}
	default:
		return nil
	}
}

// generate serves the routes with a body: read, parse, keys, then decide and carry until an engine has answered.
func (x *exchange) generate(route openai.Route) {
	body, release, bad := x.g.readBody(x.w, x.r)
	x.body.hold(body, release)
	defer x.body.letGo()
	if bad != nil {
		x.refuse(route, bad)
		return
	}
	if bad := x.read(route, body); bad != nil {
		x.refuse(route, bad)
		return
	}
	request := x.request
	x.thread = x.newThread(request)
	// What is parsed points into the body, which is let go when no other engine can be tried any more.
	x.request = &openai.Request{
		Model: request.Model, Stream: request.Stream, Stored: request.Stored, Background: request.Background,
		Traits: request.Traits, Salt: request.Salt, LoRA: request.LoRA,
	}
	x.serve(request)
}

// read parses a body, and finds its model, its keys and its class.
func (x *exchange) read(route openai.Route, body []byte) *openai.Error {
	start := time.Now()
	request, err := x.policy.limits.Parse(route, body)
	if err != nil {
		return asError(err)
	}
	x.request, x.event.Model = request, request.Model
	if !x.resolve() {
		return unknownModel(request.Model, x.g.View.Models())
	}
	x.keys()
	x.event.Decision = time.Since(start)
	return nil
}

// serve carries the request to engines until one has answered, within the time limit.
func (x *exchange) serve(request *openai.Request) {
	defer x.open(request.Route, request.Stream)()
	x.answer.skipNotFound = request.Previous != ""
	x.answer.onContent = x.body.letGo
	defer func() {
		waited, _ := x.seat().leave(false, false) // in vain
		x.event.Waited += waited
	}()
	defer x.thread.close()
	x.finish(x.carry())
}

// open makes the answer, and the context that ends with the client, the time limit and the agent's Cut. Whoever calls it
// calls done at the end.
func (x *exchange) open(route openai.Route, stream bool) (done func()) {
	limited, cancel := context.WithTimeout(x.r.Context(), x.g.Timeout)
	ctx, stop := context.WithCancelCause(limited)
	x.ctx, x.answer = ctx, newAnswer(x.w, route, stream)
	x.answer.http2 = x.r.ProtoMajor > 1
	detach := context.AfterFunc(x.g.cut, func() { stop(context.Cause(x.g.cut)) })
	unhook := func() bool { return true }
	if x.r.ProtoMajor == 1 { // over HTTP/2 the end of a stream ends its writes
		unhook = context.AfterFunc(x.r.Context(), x.answer.hangUp)
	}
	return func() {
		x.answer.close()
		unhook()
		detach()
		stop(nil)
		cancel()
	}
}

// resolve finds the canonical name of the request's model.
func (x *exchange) resolve() bool {
	canonical, ok := x.g.View.Canonical(x.request.Model)
	x.model = canonical
	return ok
}

// keys computes the prompt keys, unless the request is one that has none.
func (x *exchange) keys() {
	if x.request.Keyless == "" {
		x.g.Key(x.request, x.model, &x.prompt)
	} else {
		x.prompt.Bytes = int64(len(x.request.Body))
	}
	x.classify()
	x.batch, x.media = x.request.Prompts > 1, x.request.Media
	x.event.PromptBytes, x.event.Keys = x.prompt.Bytes, len(x.prompt.Keys)
}

// classify finds the class of the request, and what is asked of its decisions.
func (x *exchange) classify() {
	x.traffic = Traffic{
		Header: x.r.Header, Model: x.request.Model, Canonical: x.model, Path: x.r.URL.Path, Bytes: float64(x.prompt.Bytes),
	}
	x.session = x.request.SessionID
	class := x.policy.Of(&x.traffic)
	x.class, x.priority = class, class.Priority
	x.q = class.Question(&x.prompt, class.Session(x.r.Header, x.session))
	x.q.Zone = x.g.Zone
	x.event.Class = class.Name
}

// refuse answers a request that no engine is to see.
func (x *exchange) refuse(route openai.Route, e *openai.Error) {
	x.event.Outcome, x.event.Reason, x.event.Status = outcomeBadRequest, e.Reason, e.Status
	if e.Status >= 500 {
		x.event.Outcome = e.Reason // the mesh's fault and not the client's
	}
	x.g.metrics.refused.WithLabelValues(e.Reason).Inc()
	writeError(x.w, route, e, leastRetry)
}

// finish turns the end of carry into the client's answer and the event's outcome.
func (x *exchange) finish(err error) {
	switch {
	case err == nil && x.broken:
		x.event.Outcome = outcomeEngineError
	case err == nil:
		x.event.Outcome = outcomeOf(x.event.Status)
	case x.g.cut.Err() != nil && x.r.Context().Err() == nil:
		x.fail(context.Cause(x.g.cut))
	case x.r.Context().Err() != nil || errors.Is(err, errClient):
		x.event.Outcome, x.event.Status = outcomeCanceled, 499
	default:
		x.fail(err)
	}
}

func (x *exchange) fail(err error) {
	e := answerError(err, x.advice())
	x.event.Outcome, x.event.Status = e.Reason, e.Status
	if r, ok := errors.AsType[*refusal](err); ok {
		x.event.Refused = r.reason
		x.g.metrics.refused.WithLabelValues(r.reason).Inc()
	}
	x.answer.fail(e, retryAfter(err))
}

// outcomeOf names the end of a request that an engine has answered.
func outcomeOf(status int) string {
	switch {
	case status >= 500:
		return outcomeEngineError
	case status >= 400:
		return outcomeEngineRefused
	default:
		return outcomeOK
	}
}

// observe closes the event and hands it on.
func (x *exchange) observe() {
	e := &x.event
	e.Total = time.Since(x.start)
	if x.thread != nil {
		e.Continued = x.thread.parts
	}
	if x.answer != nil {
		if first := x.answer.firstToken(); !first.IsZero() && e.Status < 400 {
			e.TTFT = first.Sub(x.start)
		}
	}
	x.g.metrics.observe(e)
	x.g.classes.note(e)
	x.g.log(e)
	if x.g.Record != nil {
		e.past = x.past()
		x.g.Record(*e)
	}
}

// quietOutcomes are those that an operator need not act on.
var quietOutcomes = []string{outcomeOK, outcomeCanceled, outcomeBadRequest, outcomeNotFound, outcomeEngineRefused}

// warnGap is the least time between two warnings of failed requests: a mesh without engines fails thousands a second.
const warnGap = 100 * time.Millisecond

// log writes one line a request for those who debug, and a warning for each failure that an operator may be asked about.
func (g *Ingress) log(e *Event) {
	level := slog.LevelDebug
	if last := g.warned.Load(); !slices.Contains(quietOutcomes, e.Outcome) && e.Time.UnixNano()-last > int64(warnGap) &&
		g.warned.CompareAndSwap(last, e.Time.UnixNano()) {
		level = slog.LevelWarn
	}
	g.Logger.Log(context.Background(), level, "request ended", "id", e.ID, "model", e.Model, "outcome", e.Outcome,
		"status", e.Status, "engine", e.Engine, "reason", e.Reason, "refused", e.Refused, "overlap_tokens", e.OverlapTokens, "attempts", e.Attempts,
		"not_continued", e.NotContinued,
		"ttft", e.TTFT, "total", e.Total)
}

// models answers GET /v1/models: the union of the mesh.
func (x *exchange) models() {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
		MaxLen  int    `json:"max_model_len,omitempty"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{}}
	for _, m := range x.g.View.Models() {
		for _, id := range append([]string{m.Name}, m.Aliases...) {
			list.Data = append(list.Data, model{ID: id, Object: "model", OwnedBy: "kvmesh", MaxLen: m.MaxContext})
		}
	}
	slices.SortFunc(list.Data, func(a, b model) int { return cmp.Compare(a.ID, b.ID) })
	list.Data = slices.CompactFunc(list.Data, func(a, b model) bool { return a.ID == b.ID })
	x.event.Outcome, x.event.Status = outcomeOK, http.StatusOK
	x.w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(x.w).Encode(list)
}
