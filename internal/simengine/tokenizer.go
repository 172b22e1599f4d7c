package simengine

import "strings"

// The tokenizer cuts text from left to right into tokens of 1 to 8 bytes (special tokens are longer), about 4 on
// English. Ids are computed from the bytes and back, so the vocabulary of 17 bits needs no training data and every
// token sequence has exactly one text:
//
//	one byte · two printable ASCII bytes · runs of 3 to 8 spaces · three digits · capital + 2 small letters ·
//	[space +] 3 small letters · [space +] 4 of the 13 most frequent small letters · [space +] word of the list · specials
//
// A token never crosses from one word into the next, so equal text gives equal tokens from the next word on, and two
// texts with a common prefix have common tokens up to at most 8 bytes before its end.
const (
	baseByte   = 0
	basePair   = baseByte + 256
	baseRun    = basePair + 95*95
	baseDigits = baseRun + 6
	baseCap    = baseDigits + 1000
	baseTri    = baseCap + 26*26*26
	baseQuad   = baseTri + 2*26*26*26
	baseWord   = baseQuad + 2*13*13*13*13
)

const (
	maxTokenWord = 7 // letters of the longest word that is one token
	frequent     = "etaoinshrdlcu"
)

// Special tokens. Each is one token and has no text in answers.
const (
	tokenStart      = "<|im_start|>"
	tokenEnd        = "<|im_end|>"
	tokenThink      = "<think>"
	tokenThinkEnd   = "</think>"
	tokenImage      = "<|image|>"
	tokenTools      = "<tools>"
	tokenToolsEnd   = "</tools>"
	tokenToolCall   = "<tool_call>"
	tokenToolResult = "<tool_response>"
)

// Token is an id of the simulated vocabulary.
type Token = uint32

// tokenizer is immutable after newTokenizer and safe for concurrent use.
type tokenizer struct {
	rank     [256]int8 // index of a small letter in frequent, -1 for other bytes
	words    map[string]Token
	list     []string
	specials []string
	baseSpec Token
}

func newTokenizer() *tokenizer {
	t := &tokenizer{words: map[string]Token{}, list: strings.Fields(commonWords)}
	for i := range t.rank {
		t.rank[i] = int8(strings.IndexByte(frequent, byte(i)))
	}
	for i, w := range t.list {
		t.words[w] = Token(baseWord + 2*i)
	}
	t.specials = []string{
		tokenStart, tokenEnd, tokenThink, tokenThinkEnd, tokenImage, tokenTools, tokenToolsEnd, tokenToolCall,
		tokenToolResult,
	}
	t.baseSpec = Token(baseWord + 2*len(t.list))
	return t
}

// size is the number of ids; every id below it has a text.
func (t *tokenizer) size() Token { return t.baseSpec + Token(len(t.specials)) }

// encode appends the tokens of s to dst.
func (t *tokenizer) encode(dst []Token, s string) []Token {
	for len(s) > 0 {
		id, n := t.next(s)
		dst = append(dst, id)
		s = s[n:]
	}
	return dst
}

// next returns the first token of s, which is not empty, and its length in bytes.
func (t *tokenizer) next(s string) (Token, int) {
	c := s[0]
	switch {
	case isLower(c):
		return t.letters(s, 0)
	case c == ' ' && len(s) > 1 && isLower(s[1]):
		return t.letters(s[1:], 1)
	case c == ' ':
		return spaces(s)
	case c >= '0' && c <= '9':
		return digits(s)
	case c >= 'A' && c <= 'Z' && len(s) > 2 && isLower(s[1]) && isLower(s[2]):
		return baseCap + (Token(c-'A')*26+Token(s[1]-'a'))*26 + Token(s[2]-'a'), 3
	case c == '<':
		if id, n := t.special(s); n > 0 {
			return id, n
		}
	}
	return pair(s)
}

// letters tokenises a word that s begins with; space is 1 when a space before it belongs to the token.
func (t *tokenizer) letters(s string, space int) (Token, int) {
	n := 1
	for n < len(s) && n <= maxTokenWord && isLower(s[n]) {
		n++
	}
	if n <= maxTokenWord {
		if id, ok := t.words[s[:n]]; ok {
			return id + Token(space), n + space
		}
	}
	if n >= 4 {
		a, b, c, d := t.rank[s[0]], t.rank[s[1]], t.rank[s[2]], t.rank[s[3]]
		if a|b|c|d >= 0 {
			id := ((Token(a)*13+Token(b))*13+Token(c))*13 + Token(d)
			return baseQuad + 2*id + Token(space), 4 + space
		}
	}
	if n >= 3 {
		id := (Token(s[0]-'a')*26+Token(s[1]-'a'))*26 + Token(s[2]-'a')
		return baseTri + 2*id + Token(space), 3 + space
	}
	if space == 1 {
		return pairOf(' ', s[0]), 2
	}
	return pair(s)
}

func (t *tokenizer) special(s string) (Token, int) {
	for i, sp := range t.specials {
		if strings.HasPrefix(s, sp) {
			return t.baseSpec + Token(i), len(sp)
		}
	}
	return 0, 0
}

// spaces takes a run of spaces, but leaves the last one to a word that follows.
func spaces(s string) (Token, int) {
	n := 1
	for n < len(s) && n < 9 && s[n] == ' ' {
		n++
	}
	if n < len(s) && isLower(s[n]) {
		n--
	}
	n = min(n, 8)
	switch {
	case n >= 3:
		return baseRun + Token(n-3), n
	case n == 2:
		return pairOf(' ', ' '), 2
	case n == 1 && len(s) > 1 && isLower(s[1]):
		return ' ', 1
	}
	return pair(s)
}

func digits(s string) (Token, int) {
	if len(s) > 2 && isDigit(s[1]) && isDigit(s[2]) {
		return baseDigits + (Token(s[0]-'0')*10+Token(s[1]-'0'))*10 + Token(s[2]-'0'), 3
	}
	if len(s) > 1 && isDigit(s[1]) {
		return pairOf(s[0], s[1]), 2
	}
	return Token(s[0]), 1
}

// pair takes two printable bytes, but never the beginning of the next word.
func pair(s string) (Token, int) {
	if len(s) < 2 || !printable(s[0]) || !printable(s[1]) || s[1] == ' ' || s[1] == '<' {
		return Token(s[0]), 1
	}
	if !isLower(s[0]) && (isLower(s[1]) || isDigit(s[1])) && s[0] != ' ' {
		return Token(s[0]), 1
	}
	return pairOf(s[0], s[1]), 2
}

func pairOf(a, b byte) Token { return basePair + Token(a-' ')*95 + Token(b-' ') }

func isLower(c byte) bool   { return c >= 'a' && c <= 'z' }
func isDigit(c byte) bool   { return c >= '0' && c <= '9' }
func printable(c byte) bool { return c >= ' ' && c <= '~' }

// text returns the bytes of one token; an id outside the vocabulary has none.
func (t *tokenizer) text(id Token) string {
	switch {
	case id < basePair:
		return string([]byte{byte(id)})
	case id < baseRun:
		n := id - basePair
		return string([]byte{' ' + byte(n/95), ' ' + byte(n%95)})
	case id < baseDigits:
		return strings.Repeat(" ", int(id-baseRun)+3)
	case id < baseCap:
		n := id - baseDigits
		return string([]byte{'0' + byte(n/100), '0' + byte(n/10%10), '0' + byte(n%10)})
	case id < baseTri:
		n := id - baseCap
		return string([]byte{'A' + byte(n/676), 'a' + byte(n/26%26), 'a' + byte(n%26)})
	}
	return t.wordText(id)
}

func (t *tokenizer) wordText(id Token) string {
	switch {
	case id < baseQuad:
		n := (id - baseTri) / 2
		return spaced((id-baseTri)%2 == 1, string([]byte{'a' + byte(n/676), 'a' + byte(n/26%26), 'a' + byte(n%26)}))
	case id < baseWord:
		n := (id - baseQuad) / 2
		w := []byte{frequent[n/2197], frequent[n/169%13], frequent[n/13%13], frequent[n%13]}
		return spaced((id-baseQuad)%2 == 1, string(w))
	case id < t.baseSpec:
		return spaced((id-baseWord)%2 == 1, t.list[(id-baseWord)/2])
	case id < t.size():
		return t.specials[id-t.baseSpec]
	}
	return ""
}

func spaced(space bool, w string) string {
	if space {
		return " " + w
	}
	return w
}

// decode returns the text of the tokens.
func (t *tokenizer) decode(ids []Token) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(t.text(id))
	}
	return b.String()
}

// isSpecial reports whether the token has no text in an answer.
func (t *tokenizer) isSpecial(id Token) bool { return id >= t.baseSpec }

// id returns the single token of a word or special token.
func (t *tokenizer) id(s string) Token {
	id, _ := t.next(s)
	return id
}

// commonWords are words that are one token each, alone and with a space before; answers are made of them.
const commonWords = `the of and to in is that for it with as on be at by this from or an are was have not but they you we all can had her
his one our out has him how its may new now see two way who did get let say she too use any about after again also
back been before being below best better between block blocks both build call came case change check class clear close
code come could count course cover data day days deep does done down during each early end engine enough error even
event every example fact fail far fast few file files find first five follow form found four full gave give given goes
going good great group grow half hand hard head held help here high hold hour house idea if into issue item job just
keep key keys kind know large last late later lead learn least left less life light like limit line list little live
load local logic long look made main make many mark match matter mean means memory message might mind model more most
move much must name near need never next node none note number object often old once only open order other over own
page part path peer place plan point power present problem process prompt put queue quick quite rate read real reason
record request result return right room route run same save search second seen send serve set several shape share
short should show side simple since size slow small some sort source space speed stand start state step still stop
store stream string such sure system table take talk task tell term test text than their them then there these thing
think those three through time today token tokens top total toward tree true try turn type under unit until up update
upon used user users value very view wait want water weight well went were what when where which while white whole why
will within without word words work world would write year yes yet young your tool tools query answer agent service
server client boolean integer array title city weather`
