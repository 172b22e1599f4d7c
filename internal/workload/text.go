package workload

import (
	"math/rand/v2"
	"strings"
)

// BytesPerToken is how many bytes stand for one token of a trace: English text in the tokenizers of today's models.
const BytesPerToken = 4

// Text makes English-like text from numbers. Equal seeds and ids give equal text, on every machine. It is immutable
// and safe for concurrent use.
type Text struct {
	seed  uint64
	words []string
}

// NewText returns the text of one seed: another seed gives other text for the same ids.
func NewText(seed uint64) *Text {
	return &Text{seed: seed, words: strings.Fields(vocabulary)}
}

// Append appends the first n bytes of the text of id. The text of an id has no end, and a shorter piece of it is a
// prefix of a longer one.
func (t *Text) Append(dst []byte, id uint64, n int) []byte {
	end := len(dst) + n
	for w := (writer{rng: rand.New(rand.NewPCG(t.seed, id)), words: t.words}); len(dst) < end; {
		dst = w.sentence(dst)
	}
	return dst[:end]
}

// AppendPassage appends the text of p.
func (t *Text) AppendPassage(dst []byte, p Passage) []byte { return t.Append(dst, p.ID, p.Bytes) }

// Passage is a run of text by its number: the first Bytes bytes of the text of ID.
type Passage struct {
	ID    uint64
	Bytes int
}

// maxSentence is above the longest sentence: 17 words of at most 13 letters, with what stands between them.
const maxSentence = 256

type writer struct {
	rng   *rand.Rand
	words []string
}

// sentence appends 6 to 17 words; every fifth sentence or so ends a paragraph.
func (w *writer) sentence(dst []byte) []byte {
	begin := len(dst)
	for i := range 6 + w.rng.IntN(12) {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = w.word(dst)
	}
	dst[begin] = upper(dst[begin])
	if w.rng.IntN(5) == 0 {
		return append(dst, ".\n\n"...)
	}
	return append(dst, ". "...)
}

// word appends one word, the front of the list more often than its end, as in real text, or in 1 of 25 cases a number,
// which keeps long texts from looking alike.
func (w *writer) word(dst []byte) []byte {
	if w.rng.IntN(25) == 0 {
		return append(dst, byte('1'+w.rng.IntN(9)), byte('0'+w.rng.IntN(10)), byte('0'+w.rng.IntN(10)))
	}
	u := w.rng.Float64()
	return append(dst, w.words[int(u*u*float64(len(w.words)))]...)
}

func upper(b byte) byte {
	if 'a' <= b && b <= 'z' {
		return b - 'a' + 'A'
	}
	return b
}

// vocabulary is the words of made text, common ones first.
const vocabulary = `the of and to in a is that for it as was with be by on not he this are or his from at which but
have an had they you were their one all we can her has there been if more when will would who so no out up into them
then she many some these two may other its only new could time any such over our most after also made like very water
before through where much your way well down should because long each just those people take how too little state good
make world own see work men day get here between both life being under three year never another know while last might
us great old off come since against go came right used place small house part found again still give old every most
night number line system follow act point home turn real leave might side plan hand high order open case seem play
report letter table paper church garden window river market engine bridge forest mountain village captain doctor
teacher farmer office council school station train journey winter summer morning evening weather storm island harbour
ship lantern mirror bottle ticket ladder basket blanket candle hammer pocket corner shelf ceiling cellar attic fence
orchard valley meadow desert glacier canyon current signal measure record method reason answer question problem result
theory pattern balance pressure surface volume distance degree circle angle figure column margin chapter sentence
language grammar accent rhythm melody concert theatre painting sculpture museum library archive document contract
agreement budget invoice payment account interest profit harvest supply demand factory machine copper silver iron
carbon oxygen crystal mineral fossil species insect feather muscle protein enzyme vitamin medicine patient surgeon
hospital injury recovery exercise athlete stadium champion victory defeat battle soldier general treaty border colony
empire kingdom republic parliament election minister senator judge lawyer witness evidence verdict prison freedom
justice duty honour courage patience wisdom memory dream shadow silence whisper thunder lightning rainbow horizon
compass telescope satellite orbit planet comet galaxy gravity electron neutron reactor turbine generator battery
circuit antenna receiver keyboard printer server packet protocol compiler variable function pointer iterator schema
database index query buffer latency bandwidth deadline schedule release version branch commit review meeting agenda
customer service delivery warehouse package receipt discount catalogue recipe kitchen butter pepper onion garlic
tomato lemon honey coffee sugar flour oven kettle saucer napkin carpet curtain pillow mattress wardrobe staircase
balcony courtyard fountain statue avenue boulevard pavement tunnel viaduct airport passenger luggage passport customs
quickly slowly carefully suddenly perhaps almost always often rarely hardly nearly exactly simply clearly quietly
ancient modern narrow broad heavy gentle bitter sweet hollow solid frozen molten distant nearby curious ordinary
remarkable different similar common foreign private public recent annual average minimum maximum complete partial
describe explain compare consider suggest require provide improve reduce increase produce contain include believe
remember forget discover invent repair replace measure observe collect deliver gather scatter borrow return promise`
