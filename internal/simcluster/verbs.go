package simcluster

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verb reads the rest of a line into what it does.
type verb func(p *parser, words []string) (action, error)

// verbs are the words that a line may begin with after its time.
var verbs = map[string]verb{
	"start":     toAgents((*play).startAll), // those that do not run
	"stop":      toAgents((*play).stopAll),  // in order, as SIGTERM does; until they have ended
	"kill":      toAgents((*play).killAll),  // as kill -9 does
	"silence":   toAgents((*play).silence),
	"resume":    toAgents((*play).resume),
	"move":      toAgents((*play).move), // those that do not run, to hosts that nobody had
	"partition": partition,              // 0-3 / 4-7
	"heal":      bare((*play).heal),
	"loss":      share(func(p *play, x float64) { p.c.SetLoss(x) }),   // 30%
	"repeat":    share(func(p *play, x float64) { p.c.SetRepeat(x) }), // 10%
	"rate":      rate,                                                 // 50kB/s on each link, off
	"reorder":   reorder,                                              // 20ms: so much jitter
	"load":      loadVerb,                                             // 20/s [through 0-3], off
	"churn":     churnVerb,                                            // 100/s, off
	"restart":   restart,                                              // 100 times
	"twin":      toAgents((*play).twin),                               // those with another agent's name, on hosts of their own
	"rekey":     toAgents((*play).rekey),                              // by another key scheme from their next life on
	"clock":     clock,                                                // -1h for 0-3: off by that from their next life on
	"mark":      bare((*play).mark),                                   // what "flat" compares with
	"expect":    expect,
}

func toAgents(do func(p *play, agents []int) error) verb {
	return func(p *parser, words []string) (action, error) {
		agents, err := p.agentsOf(words...)
		return func(p *play) error { return do(p, agents) }, err
	}
}

func bare(do func(p *play) error) verb {
	return func(_ *parser, words []string) (action, error) {
		if len(words) > 0 {
			return nil, fmt.Errorf("%q is too much", strings.Join(words, " "))
		}
		return do, nil
	}
}

func share(set func(p *play, x float64)) verb {
	return func(_ *parser, words []string) (action, error) {
		number, ok := strings.CutSuffix(strings.Join(words, " "), "%")
		percent, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil || percent < 0 || percent > 100 {
			return nil, errors.New("it takes 0% to 100%")
		}
		return func(p *play) error { set(p, percent/100); return nil }, nil
	}
}

func reorder(_ *parser, words []string) (action, error) {
	jitter, err := time.ParseDuration(strings.Join(words, " "))
	if err != nil || jitter < 0 {
		return nil, errors.New("it takes the time by which packets may overtake")
	}
	return func(p *play) error { p.c.SetDelay(p.c.config.Delay, jitter); return nil }, nil
}

func rate(_ *parser, words []string) (action, error) {
	if slices.Equal(words, []string{"off"}) {
		return func(p *play) error { p.c.SetRate(0); return nil }, nil
	}
	number, ok := strings.CutSuffix(strings.Join(words, " "), "kB/s")
	kilobytes, err := strconv.Atoi(number)
	if !ok || err != nil || kilobytes < 1 {
		return nil, errors.New("it takes N kB/s, as one word, or off")
	}
	return func(p *play) error { p.c.SetRate(1000 * kilobytes); return nil }, nil
}

func partition(p *parser, words []string) (action, error) {
	var groups [][]int
	for part := range strings.SplitSeq(strings.Join(words, " "), "/") {
		group, err := p.agentsOf(strings.Fields(part)...)
		if err != nil {
			return nil, err
		}
		groups = append(groups, group)
	}
	return func(p *play) error { return p.partition(groups) }, nil
}

// loadVerb reads "20/s", "20/s through 0-3" and "off".
func loadVerb(p *parser, words []string) (action, error) {
	if slices.Equal(words, []string{"off"}) {
		return (*play).loadOff, nil
	}
	through := []string{"all"}
	if len(words) > 2 && words[1] == "through" {
		words, through = words[:1], words[2:]
	}
	rate, err := perSecond(words)
	if err != nil {
		return nil, err
	}
	agents, err := p.agentsOf(through...)
	return func(p *play) error { return p.loadOn(float64(rate), agents) }, err
}

// churnVerb reads "100/s" and "off".
func churnVerb(p *parser, words []string) (action, error) {
	rate := 0
	if !slices.Equal(words, []string{"off"}) {
		var err error
		if rate, err = perSecond(words); err != nil {
			return nil, err
		}
	}
	if p.churn == nil {
		p.churn = &churn{}
	}
	churn := p.churn
	return func(*play) error { churn.perSecond.Store(int64(rate)); return nil }, nil
}

func perSecond(words []string) (int, error) {
	number, ok := strings.CutSuffix(strings.Join(words, " "), "/s")
	rate, err := strconv.Atoi(number)
	if !ok || err != nil || rate < 1 {
		return 0, errors.New("it takes N/s or off")
	}
	return rate, nil
}

// clock reads "-1h for 0-3".
func clock(p *parser, words []string) (action, error) {
	if len(words) < 3 || words[1] != "for" {
		return nil, errors.New("it takes: -1h for AGENTS")
	}
	off, err := time.ParseDuration(words[0])
	if err != nil {
		return nil, fmt.Errorf("%q is no time", words[0])
	}
	agents, err := p.agentsOf(words[2:]...)
	return func(p *play) error { return p.clock(off, agents) }, err
}

// restart reads "100 times".
func restart(_ *parser, words []string) (action, error) {
	if len(words) != 2 || words[1] != "times" {
		return nil, errors.New("it takes N times")
	}
	n, err := strconv.Atoi(words[0])
	if err != nil || n < 1 {
		return nil, fmt.Errorf("%q is no number of restarts", words[0])
	}
	return func(p *play) error { return p.restarts(n) }, nil
}
