package simcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
	"github.com/kvmesh/kvmesh/mesh"
)

// script is what happens to a cluster, line by line. A script reads like the log of that cluster:
//
//	# comment
//	agents 16                      what the cluster is: before the first line with a time
//	network 200us jitter 100us
//	answers 60                     tokens, on average
//	timings production
//	00:00.0 start all              when, since the beginning, and what: see verbs
//	00:10.0 partition 0-7 / 8-15
//	+5s     heal                   so long after the line before has ended
//	+0s     expect within 15s views equal
//	01:00.0 for 10 times every 01:00.0
//	00:30.0   loss 30%             since the beginning of the round
//	        end
//
// A word a|b is a in the short form of a script and b in the long one.
type script struct {
	path   string
	name   string // of the file, without its ending
	config Config
	churn  *churn // nil where nothing churns
	steps  []step
}

// step is one line with a time.
type step struct {
	line   int
	text   string
	at     time.Duration // since the beginning
	after  bool          // at counts from the end of the line before
	action action
}

// action does what a line says.
type action func(p *play) error

// readScript reads a script in its short or its long form.
func readScript(path string, long bool) (*script, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read script: %w", err)
	}
	return parseScript(path, string(b), long)
}

func parseScript(path, text string, long bool) (*script, error) {
	s := &script{path: path, name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
	p := &parser{script: s, long: long, timings: mesh.LocalConfig().Timings}
	for line := range strings.Lines(text) {
		p.line++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := p.take(words); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, p.line, err)
		}
	}
	if p.rounds > 0 {
		return nil, fmt.Errorf("%s:%d: the rounds have no end", path, p.line)
	}
	if len(s.steps) == 0 {
		return nil, fmt.Errorf("%s:%d: nothing happens", path, p.line)
	}
	s.config.Idle = true
	s.config.Agent = func(_ int, n *node.Config) {
		n.Mesh.Timings = p.timings
		if s.churn != nil {
			n.Source = s.churn.source
		}
	}
	return s, nil
}

// parser is a script that is being read.
type parser struct {
	*script
	long    bool
	line    int
	timings mesh.Timings

	rounds int           // of the block that is being read; 0 outside
	every  time.Duration // from round to round
	begin  step          // the line that began the block
	first  int           // of the block's steps
}

func (p *parser) take(words []string) error {
	for i, w := range words {
		if short, long, both := strings.Cut(w, "|"); both {
			if words[i] = short; p.long {
				words[i] = long
			}
		}
	}
	if words[0] == "end" {
		return p.endRounds()
	}
	at, after, err := parseTime(words[0])
	if err != nil {
		if len(p.steps) > 0 {
			return err
		}
		return p.header(words)
	}
	if len(words) < 2 {
		return fmt.Errorf("what happens at %s?", words[0])
	}
	st := step{line: p.line, text: strings.Join(words[1:], " "), at: at, after: after}
	if words[1] == "for" {
		return p.beginRounds(st, words[2:])
	}
	verb, known := verbs[words[1]]
	if !known {
		return fmt.Errorf("nobody knows how to %q", words[1])
	}
	if st.action, err = verb(p, words[2:]); err != nil {
		return fmt.Errorf("%s: %w", st.text, err)
	}
	p.steps = append(p.steps, st)
	return nil
}

// beginRounds takes "N times every D".
func (p *parser) beginRounds(st step, words []string) (err error) {
	if len(words) != 4 || words[1] != "times" || words[2] != "every" || p.rounds > 0 || st.after {
		return fmt.Errorf("%q must be: MM:SS.s for N times every MM:SS.s, and not in another", st.text)
	}
	if p.rounds, err = strconv.Atoi(words[0]); err != nil || p.rounds < 1 {
		return fmt.Errorf("%q is no number of rounds", words[0])
	}
	if p.every, _, err = parseTime(words[3]); err != nil {
		return err
	}
	st.action = func(*play) error { return nil }
	p.begin, p.first = st, len(p.steps)
	return nil
}

// endRounds writes the block out, round by round.
func (p *parser) endRounds() error {
	if p.rounds == 0 {
		return errors.New("there is nothing to end")
	}
	block := slices.Clone(p.steps[p.first:])
	p.steps = append(p.steps[:p.first], p.begin)
	for round := range p.rounds {
		for _, st := range block {
			if !st.after {
				st.at += p.begin.at + time.Duration(round)*p.every
			}
			p.steps = append(p.steps, st)
		}
	}
	p.rounds = 0
	return nil
}

// parseTime reads "05:30.5" since the beginning, or "+5s" after the line before.
func parseTime(word string) (at time.Duration, after bool, err error) {
	if d, ok := strings.CutPrefix(word, "+"); ok {
		at, err = time.ParseDuration(d)
		return at, true, err
	}
	minutes, seconds, ok := strings.Cut(word, ":")
	m, err1 := strconv.Atoi(minutes)
	s, err2 := strconv.ParseFloat(seconds, 64)
	if !ok || err1 != nil || err2 != nil || m < 0 || s < 0 || s >= 60 {
		return 0, false, fmt.Errorf("%q is no time: MM:SS.s, or +5s", word)
	}
	return time.Duration(m)*time.Minute + time.Duration(s*float64(time.Second)), false, nil
}

// header takes a line that says what the cluster is.
func (p *parser) header(words []string) (err error) {
	c := &p.config
	switch text := strings.Join(words, " "); {
	case words[0] == "agents" && len(words) == 2:
		if c.Agents, err = strconv.Atoi(words[1]); err != nil || c.Agents < 1 {
			return fmt.Errorf("%q is no number of agents", words[1])
		}
		return nil
	case words[0] == "network" && len(words) == 4 && words[2] == "jitter":
		if c.Delay, err = time.ParseDuration(words[1]); err == nil {
			c.Jitter, err = time.ParseDuration(words[3])
		}
		return err
	case words[0] == "answers" && len(words) == 2:
		tokens, err := strconv.Atoi(words[1])
		if err != nil || tokens < 1 {
			return fmt.Errorf("%q is no number of tokens", words[1])
		}
		c.Engine = func(i int) simengine.Config {
			e := DefaultEngine(i)
			e.AnswerTokens = tokens
			return e
		}
		return nil
	case text == "timings local":
		return nil
	case text == "timings production":
		p.timings = mesh.DefaultConfig().Timings
		return nil
	default:
		return fmt.Errorf("%q says nothing of a cluster, and is no time", text)
	}
}

// agentsOf reads who is meant: "all", "agent3", "3", "2-4", "1,3,5-7".
func (p *parser) agentsOf(words ...string) ([]int, error) {
	var all []int
	for _, word := range words {
		for part := range strings.SplitSeq(word, ",") {
			some, err := p.someOf(part)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("nobody is named")
	}
	return all, nil
}

func (p *parser) someOf(part string) (some []int, err error) {
	from, to := 0, p.config.Agents-1
	if part != "all" {
		first, last, isRange := strings.Cut(strings.TrimPrefix(part, "agent"), "-")
		if from, err = strconv.Atoi(first); err == nil && isRange {
			to, err = strconv.Atoi(last)
		} else {
			to = from
		}
	}
	if err != nil || from < 0 || to < from || to >= p.config.Agents {
		return nil, fmt.Errorf("%q is none of the %d agents", part, p.config.Agents)
	}
	for i := from; i <= to; i++ {
		some = append(some, i)
	}
	return some, nil
}
