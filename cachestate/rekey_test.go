package cachestate

import (
	"math/rand/v2"
	"testing"
)

// isNext reports whether a key is of the next scheme: see nextForm.
func isNext(k Key) bool { return k&1 == 1 }

// nextForm is a prompt of promptOf in the next scheme, oldForm in the one before it: keys differ in their last bit.
func nextForm(p *Prompt) *Prompt {
	next := p.Clone()
	for i := range next.Keys {
		next.Keys[i] |= 1
	}
	next.Alike = true
	return next
}

func oldForm(p *Prompt) *Prompt {
	p = p.Clone()
	for i := range p.Keys {
		p.Keys[i] &^= 1
	}
	return p
}

func bothForms(p *Prompt) *Prompt {
	both := oldForm(p)
	both.Next = nextForm(p)
	return both
}

// schemeRun is an engine that is followed through a change of scheme.
type schemeRun struct {
	t     *testing.T
	rng   *rand.Rand
	b     *Blocks
	e     *toyEngine
	shown shownKeys
	texts [][]byte
}

// serve has one prompt served in a form.
func (s *schemeRun) serve(form func(*Prompt) *Prompt) {
	text := grow(s.rng, s.texts)
	s.texts = append(s.texts, text)
	if len(s.texts) > 40 {
		s.texts = s.texts[1:]
	}
	p, tokens := form(promptOf(5, text...)), tokensOf(text)
	s.b.Rekey(p)
	if from, all := s.e.hit(tokens)/4, s.e.hashes(tokens); from < len(all) {
		s.b.Apply(0, s.e.store(tokens, from, len(all)))
	}
	s.b.Teach(Lesson{Prompt: p, Tokens: tokens})
	s.b.Rekey(p)
	evict(s.rng, s.b, s.e, s.texts)
	if got := s.estimate(text, form); got != s.hit(text) {
		s.t.Fatalf("estimate %d tokens of the prompt that was served, the engine has %d", got, s.hit(text))
	}
}

func (s *schemeRun) estimate(text []byte, form func(*Prompt) *Prompt) int {
	most := 0
	for _, p := range form(promptOf(5, text...)).Forms() {
		most = max(most, s.b.Estimate(p).Tokens)
	}
	return most
}

func (s *schemeRun) hit(text []byte) int {
	return min(s.e.hit(tokensOf(text)), (len(text)-1)/s.e.block*s.e.block)
}

// count returns how many keys of each scheme are shown.
func (s *schemeRun) count() (old, next int) {
	for k := range s.shown[TierGPU] {
		if isNext(k) {
			next++
		} else {
			old++
		}
	}
	return old, next
}

// Through a window of both forms every prompt's estimate is what the engine holds, without a lesson for the new keys, and
// afterwards no key of the old form is shown for long.
func TestBlocksChangeTheirScheme(t *testing.T) {
	shown := shownKeys{}
	s := &schemeRun{
		t: t, rng: rand.New(rand.NewPCG(3, 4)), b: NewBlocks(4, 1<<20, 1<<16, shown.change(t)),
		e: &toyEngine{block: 4, held: map[uint64]int{}}, shown: shown,
	}
	for range 300 {
		s.serve(oldForm)
	}
	if old, next := s.count(); old == 0 || next != 0 {
		t.Fatalf("before the window %d keys of the old scheme and %d of the next", old, next)
	}
	for _, text := range s.texts { // whoever asks again finds all
		s.b.Rekey(bothForms(promptOf(5, text...)))
		if got := s.estimate(text, nextForm); got != s.hit(text) {
			t.Fatalf("estimate %d tokens in the next scheme, the engine has %d", got, s.hit(text))
		}
	}
	for range 300 {
		s.serve(bothForms)
	}
	if old, next := s.count(); old == 0 || next*10 < old*6 { // nobody asked for the others in the window
		t.Errorf("at the end of the window %d keys of the old scheme and %d of the next", old, next)
	}
	forms := []func(*Prompt) *Prompt{nextForm, nextForm, bothForms}
	for range 100 { // some ingresses are late
		s.serve(forms[s.rng.IntN(len(forms))])
	}
	for range 1000 {
		s.serve(nextForm)
	}
	if old, next := s.count(); old*3 > next { // nobody asked for them again, and others hold their blocks
		t.Errorf("after the window %d keys of the old scheme and %d of the next", old, next)
	}
	s.b.Apply(0, &BlockEvent{Kind: BlocksCleared})
	if old, next := s.count(); old+next != 0 {
		t.Errorf("cleared, and still %d keys are shown", old+next)
	}
	if s.b.renderings.twins < 0 {
		t.Errorf("%d twins", s.b.renderings.twins)
	}
}

// Keys of another layout stand for other text at the same boundary: they are left to lessons.
func TestFormsThatAreNotAlikeAreTaught(t *testing.T) {
	b := NewBlocks(4, 1<<20, 1<<16, func(Tier, Key, bool) {})
	text := []byte("a text of some tokens")
	p := bothForms(promptOf(5, text...))
	p.Next.Alike = false
	b.Teach(Lesson{Prompt: p, Tokens: tokensOf(text)})
	b.Rekey(p)
	if b.Known(p.Next.Keys[2]) {
		t.Error("a key of another layout is known without a lesson")
	}
	b.Teach(Lesson{Prompt: p.Next, Tokens: tokensOf(text)})
	if !b.Known(p.Keys[2]) || !b.Known(p.Next.Keys[2]) {
		t.Error("a key that was taught is not known")
	}
}

// A prompt that comes in the next form alone shows that the window is over for it, and one in both that it is not.
func TestKeysOfTheOldFormGoWithoutIt(t *testing.T) {
	shown := shownKeys{}
	b, e := NewBlocks(4, 1<<20, 1<<16, shown.change(t)), &toyEngine{block: 4, held: map[uint64]int{}}
	short, long := []byte("a text of some tokens"), []byte("a text of some tokens and more of them")
	for _, text := range [][]byte{short, long} {
		b.Teach(Lesson{Prompt: oldForm(promptOf(5, text...)), Tokens: tokensOf(text)})
	}
	b.Apply(0, e.store(tokensOf(long), 0, len(long)/4))
	for _, step := range []struct {
		name string
		form func(*Prompt) *Prompt
		text []byte
		old  int // keys of the longer text that are shown in the old scheme
		next int
	}{
		{"before the window", oldForm, long, 9, 0},
		{"in the window", bothForms, short, 9, 5},
		{"the other one too", bothForms, long, 9, 9},
		{"a prompt that others go on from comes alone", nextForm, short, 9, 9},
		{"all come alone", nextForm, long, 0, 9},
		{"an ingress is late", bothForms, long, 9, 9},
		{"all come alone again", nextForm, long, 0, 9},
		{"the change is taken back", bothForms, long, 9, 9},
		{"and the shorter one comes in both", bothForms, short, 9, 9},
		{"for that", oldForm, short, 9, 9},
		{"for all", oldForm, long, 9, 0},
	} {
		b.Rekey(step.form(promptOf(5, step.text...)))
		var old, next int
		for _, k := range promptOf(5, long...).Keys {
			if shown[TierGPU][k|1] {
				next++
			}
			if shown[TierGPU][k&^1] {
				old++
			}
		}
		if old != step.old || next != step.next {
			t.Errorf("%s: %d keys of the old scheme and %d of the next are shown, want %d and %d", step.name, old, next, step.old, step.next)
		}
	}
}
