package forward

// Rule holds the parameters of a decision. The measurements behind the values of DefaultRule are in section 9 of the
// architecture, and where DESIGN.md deviates from it in section "Tried" there.
type Rule struct {
	// WaitWeight is W0: the price of a second of new work, its own delay included, when the mesh is idle. From 1 to 3 is flat
	// for long prompts; below 2.5 short conversations lose hits.
	WaitWeight float64
	// Step is K: the share of a whole improvement step over random routing that work which delays others costs. From 0.5 to
	// 1 is flat.
	Step float64
	// MaxStep bounds g, in 1/s: an engine that accepts 10 requests a second and is always busy. More is no measurement.
	MaxStep float64
	// RequestCost is c, in seconds, until it is learned; MinRequestCost and MaxRequestCost bound what is learned. Too small
	// lets a shared system prompt draw all work to few engines, too large scatters conversations.
	RequestCost, MinRequestCost, MaxRequestCost float64
	// ByOverlap is the number of candidates taken for their overlap.
	ByOverlap int
	// ByChance is the number of candidates taken at random: fewer herd, more are hardly better, and cost time.
	ByChance int
	// Probes is the number of candidates asked for their load before one is chosen: each is two packets more for a request,
	// fewer choose by numbers that are a heartbeat old. Above ByOverlap there is always one drawn by chance among them.
	Probes int
	// Tie is how far scores may differ, in seconds, and still be equal: what engines of one kind learn differs by that.
	Tie float64
	// LocalityWeight is the worth of a second of prefill that overlap saves, in seconds. Overlap counts for more than it
	// saves above 1.
	LocalityWeight float64
	// MinPromptTokens is the size of a prompt below which it is not worth a look at digests.
	MinPromptTokens int
}

// DefaultRule returns the rule in use.
func DefaultRule() Rule {
	return Rule{
		WaitWeight: 2.5, Step: 0.5, MaxStep: 100,
		RequestCost: 0.050, MinRequestCost: 0.010, MaxRequestCost: 0.100,
		ByOverlap: 3, ByChance: 6, Probes: 4, Tie: 0.010,
		LocalityWeight: 1, MinPromptTokens: 200,
	}
}

// minIdle is the least idle share that a step reckons with: at 1 - rho = 0 its price would have no bound.
const minIdle = 0.05

// step is g in 1/s: how much a second of new work delays those that come behind it, for each second of queue. It is the
// value function of M/G/1, of which section 9 of the architecture takes the share K.
func (r *Rule) step(l *Learned) float64 {
	return min(r.Step*l.AcceptRate/max(1-l.BusyShare, minIdle), r.MaxStep)
}

// requestCost is c in seconds: what one more running request costs those that run.
func (r *Rule) requestCost(l *Learned) float64 {
	if l.RequestCost == 0 {
		return r.RequestCost
	}
	return min(max(l.RequestCost, r.MinRequestCost), r.MaxRequestCost)
}
