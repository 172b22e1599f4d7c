package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// comparison sums up what an agent believed against what its engine held, at moments when nothing ran.
type comparison struct {
	block int

	ends     int // prompts that were sent before and whose rendering the agent knows
	unknown  int // prompts that were sent before and that it does not know
	wrong    int // of ends, those with another number of whole blocks
	firstBad string
	under    int // of wrong, those too low

	parted    spread // variants that part from a known prompt where a key ends
	elsewhere spread // variants that part from one anywhere, and prompts that the agent does not know
}

// spread is how far estimates are from the truth.
type spread struct {
	n    int
	past int // most blocks by which an estimate was too high
	many int // estimates more than one block too high
	far  int // estimates more than max(1 block, 2 % of the prompt) too high

	// The same by positions: some texts are the beginning of many prompts, and what is believed of them is one belief.
	positions    map[[2]int]bool
	farPositions int

	sum  float64 // of |difference| ÷ max(1 block, 2 % of the prompt)
	over float64 // the part of that by which estimates are too high

	worst string
}

// compareAll compares recent prompts and variants of them.
func (p *player) compareAll(c *comparison, n int, rng *rand.Rand) error {
	layout, err := p.layout()
	if err != nil {
		return err
	}
	for i := range n {
		sent := p.recent[len(p.recent)-1-i%len(p.recent)]
		if err := p.compareEnd(c, &sent); err != nil {
			return err
		}
		at, rest := randomPlace(&sent, rng), p.mix.writer.prose(200)
		if err := p.compareVariant(c, &c.elsewhere, at.variant(&sent, rest)); err != nil {
			return err
		}
		if err := p.compareVariant(c, &c.parted, at.boundary(layout, &sent, rest).variant(&sent, rest)); err != nil {
			return err
		}
	}
	return nil
}

// layout returns how the agent makes the keys of the model's prompts. It needs a recent prompt.
func (p *player) layout() (openai.Layout, error) {
	e, err := p.r.estimate(p.node, p.recent[len(p.recent)-1].body())
	return e.Layout, err
}

func (p *player) both(req *request) (estimate, truth, error) {
	body := req.body()
	e, err := p.r.estimate(p.node, body)
	if err != nil {
		return e, truth{}, err
	}
	t, err := p.r.truth(p.node, body)
	return e, t, err
}

// compareEnd looks at a prompt that was sent before.
func (p *player) compareEnd(c *comparison, req *request) error {
	e, t, err := p.both(req)
	if err != nil {
		return err
	}
	if !e.Exact {
		c.unknown++
		c.elsewhere.add(c.block, e, t)
		return nil
	}
	c.ends++
	if e.Overlap/c.block != t.Hit/c.block {
		c.wrong++
		if e.Overlap < t.Hit {
			c.under++
		}
		if c.firstBad == "" {
			c.firstBad = fmt.Sprintf("; the first: estimate %+v, truth %+v", e, t)
		}
	}
	return nil
}

// compareVariant looks at a prompt that was never sent.
func (p *player) compareVariant(c *comparison, to *spread, req request) error {
	e, t, err := p.both(&req)
	if err != nil {
		return err
	}
	to.add(c.block, e, t)
	if p.compared != nil {
		last := req.Messages[len(req.Messages)-1]
		_ = p.compared.Encode(compared{to == &c.parted, len(req.Messages), len(last.Content), len(req.Tools), e, t})
	}
	return nil
}

// compared is one line of a log, without any text.
type compared struct {
	Boundary  bool // the variant parts where a key ends
	Messages  int
	LastBytes int // of the last message
	Tools     int
	Estimate  estimate
	Truth     truth
}

func (s *spread) add(block int, e estimate, t truth) {
	s.n++
	blocks := int(math.Ceil(float64(e.Overlap-t.Hit) / float64(block)))
	if blocks > s.past {
		s.past, s.worst = blocks, fmt.Sprintf("; the worst: estimate %+v, truth %+v", e, t)
	}
	if blocks > 1 {
		s.many++
	}
	slack := max(float64(block), 0.02*float64(t.Prompt))
	far := float64(e.Overlap-t.Hit) > slack
	if far {
		s.far++
	}
	if at := [2]int{e.Overlap, t.Hit}; !s.positions[at] {
		if s.positions == nil {
			s.positions = map[[2]int]bool{}
		}
		s.positions[at] = true
		if far {
			s.farPositions++
		}
	}
	s.sum += math.Abs(float64(e.Overlap-t.Hit)) / slack
	s.over += max(float64(e.Overlap-t.Hit), 0) / slack
}

// maxFar is the share of reckoned positions that may be too high by more than their average may be off.
const maxFar = 0.05

func (c *comparison) figures(p *player, name string) {
	f := p.r.h.Figures
	f.Zero(name+"_prompt_ends_wrong", float64(c.wrong), "of %d prompts sent before; %d of them too low%s", c.ends, c.under, c.firstBad)
	f.AtLeast(name+"_prompt_ends_known", float64(c.ends)/float64(c.ends+c.unknown), 0.6,
		"share of %d prompts sent before whose rendering the agent knows; with one cache group it does not ask for one that adds less than two blocks", c.ends+c.unknown)
	worse := c.parted
	if c.elsewhere.past > worse.past {
		worse = c.elsewhere
	}
	n, positions := c.parted.n+c.elsewhere.n, len(c.parted.positions)+len(c.elsewhere.positions)
	f.AtMost(name+"_too_high_share", float64(c.parted.farPositions+c.elsewhere.farPositions)/float64(positions), maxFar,
		"of %d positions reckoned between known ones, those believed more than max(1 block, 2 %% of the prompt) too far; "+
			"of %d prompts that part from a known one %d, %d of them more than one block, the worst %d%s",
		positions, n, c.parted.far+c.elsewhere.far, c.parted.many+c.elsewhere.many, worse.past, worse.worst)
	f.AtMost(name+"_difference_mean", c.parted.sum/float64(c.parted.n), 1,
		"of |estimate − truth| ÷ max(1 block, 2 %% of the prompt), over %d prompts that part from a known one where a key ends, %.3f of it too high; "+
			"over %d that part anywhere, up to a key's distance behind the last, %.3f, %.3f of it too high",
		c.parted.n, c.parted.over/float64(c.parted.n), c.elsewhere.n, c.elsewhere.sum/float64(c.elsewhere.n), c.elsewhere.over/float64(c.elsewhere.n))
}
