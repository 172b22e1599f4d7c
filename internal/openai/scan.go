package openai

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// span is the place of one JSON value in a body: its first byte and the byte after its last. The zero span is no value.
type span struct{ lo, hi uint32 }

func (s span) ok() bool { return s.hi > s.lo }

// longValue is the length from which the scanner remembers where a string, object or array ends, so that later passes
// jump over it. Smaller makes the list longer (8 bytes for each, and at most one for every longValue bytes at one depth);
// larger makes the later passes read more.
const longValue = 256

// scanner checks that a body is one JSON value as RFC 8259 has it, nested at most depth deep. It does not check that
// strings are UTF-8: engines do, and nothing here depends on it.
type scanner struct {
	b     []byte
	depth int
	long  []span // the long values, in the order of their first bytes
	at    int    // where the fault is
	fault string // what was wrong; "" while nothing is
	deep  bool   // the fault is the depth
}

// scan checks b and returns it as a doc.
func scan(b []byte, depth int) (doc, *Error) { return scanInto(nil, b, depth) }

// scanInto is scan with memory for the list of long values, which becomes that of the doc.
func scanInto(long []span, b []byte, depth int) (doc, *Error) {
	s := scanner{b: b, depth: depth, long: long}
	if i := s.value(s.space(0), 0); i >= 0 {
		if i = s.space(i); i < len(b) {
			s.fail(i, "more data after the value")
		}
	}
	switch {
	case s.deep:
		return doc{}, badRequest(ReasonDepth, "", "the body is nested more than %d deep at byte %d", depth, s.at)
	case s.fault != "":
		return doc{}, badRequest(ReasonJSON, "", "the body is not valid JSON: %s at byte %d", s.fault, s.at)
	}
	return doc{b: b, long: s.long}, nil
}

// fail notes the first fault and returns the index that stands for failure.
func (s *scanner) fail(at int, fault string) int {
	s.at, s.fault = at, fault
	return -1
}

// unexpected fails at i with what stands there.
func (s *scanner) unexpected(i int, where string) int {
	if i >= len(s.b) {
		return s.fail(len(s.b), "unexpected end "+where)
	}
	return s.fail(i, fmt.Sprintf("unexpected %q %s", s.b[i], where))
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// space returns the first index from i on that is not white space.
func (s *scanner) space(i int) int {
	for i < len(s.b) && isSpace(s.b[i]) {
		i++
	}
	return i
}

// value checks the value at i and returns the index after it, or -1.
func (s *scanner) value(i, depth int) int {
	if i >= len(s.b) {
		return s.unexpected(i, "instead of a value")
	}
	switch c := s.b[i]; {
	case c == '"':
		return s.str(i + 1)
	case c == '{' || c == '[':
		if depth == s.depth {
			s.deep = true
			return s.fail(i, "too deep")
		}
		return s.nest(i, depth+1)
	case c == '-' || '0' <= c && c <= '9':
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	}
	return s.unexpected(i, "instead of a value")
}

// nest checks the object or array at i. Its place in the list of long values is taken before those of its parts, and
// given back when it turns out short: then its parts are short too, and it is the last of the list.
func (s *scanner) nest(i, depth int) int {
	place := len(s.long)
	s.long = append(s.long, span{lo: uint32(i)})
	var end int
	if s.b[i] == '{' {
		end = s.object(i+1, depth)
	} else {
		end = s.array(i+1, depth)
	}
	if end-i < longValue {
		s.long = s.long[:place]
	} else {
		s.long[place].hi = uint32(end)
	}
	return end
}

func (s *scanner) array(i, depth int) int {
	i = s.space(i)
	if i < len(s.b) && s.b[i] == ']' {
		return i + 1
	}
	for {
		if i = s.value(s.space(i), depth); i < 0 {
			return -1
		}
		i = s.space(i)
		switch {
		case i < len(s.b) && s.b[i] == ',':
			i++
		case i < len(s.b) && s.b[i] == ']':
			return i + 1
		default:
			return s.unexpected(i, "in an array")
		}
	}
}

func (s *scanner) object(i, depth int) int {
	i = s.space(i)
	if i < len(s.b) && s.b[i] == '}' {
		return i + 1
	}
	for {
		if i = s.space(i); i >= len(s.b) || s.b[i] != '"' {
			return s.unexpected(i, "instead of a name")
		}
		if i = s.str(i + 1); i < 0 {
			return -1
		}
		if i = s.space(i); i >= len(s.b) || s.b[i] != ':' {
			return s.unexpected(i, "after a name")
		}
		if i = s.value(s.space(i+1), depth); i < 0 {
			return -1
		}
		i = s.space(i)
		switch {
		case i < len(s.b) && s.b[i] == ',':
			i++
		case i < len(s.b) && s.b[i] == '}':
			return i + 1
		default:
			return s.unexpected(i, "in an object")
		}
	}
}

func (s *scanner) literal(i int, want string) int {
	for j := range len(want) {
		if i+j >= len(s.b) || s.b[i+j] != want[j] {
			return s.unexpected(i+j, "in a literal")
		}
	}
	return i + len(want)
}

func (s *scanner) number(i int) int {
	if s.b[i] == '-' {
		i++
	}
	if i < len(s.b) && s.b[i] == '0' {
		i++
	} else if i = s.digits(i); i < 0 {
		return -1
	}
	if i < len(s.b) && s.b[i] == '.' {
		if i = s.digits(i + 1); i < 0 {
			return -1
		}
	}
	if i < len(s.b) && (s.b[i] == 'e' || s.b[i] == 'E') {
		i++
		if i < len(s.b) && (s.b[i] == '+' || s.b[i] == '-') {
			i++
		}
		return s.digits(i)
	}
	return i
}

// digits checks one or more digits.
func (s *scanner) digits(i int) int {
	start := i
	for i < len(s.b) && '0' <= s.b[i] && s.b[i] <= '9' {
		i++
	}
	if i == start {
		return s.unexpected(i, "in a number")
	}
	return i
}

// str checks the string whose first byte after the quote is at i and returns the index after the closing quote.
func (s *scanner) str(i int) int {
	start := i
	for {
		if i = stop(s.b, i); i+1 >= len(s.b) {
			return s.strTail(start, i)
		}
		switch c := s.b[i]; {
		case c == '\\' && simpleEscapes[s.b[i+1]] != 0:
			i += 2
		case c == '"':
			return s.strEnd(start, i)
		case c == '\\':
			if i = s.unicode(i + 1); i < 0 {
				return -1
			}
		default:
			return s.unexpected(i, "in a string")
		}
	}
}

// strTail is str where the body ends at or after i.
func (s *scanner) strTail(start, i int) int {
	if i < len(s.b) && s.b[i] == '"' {
		return s.strEnd(start, i)
	}
	return s.unexpected(len(s.b), "in a string")
}

// strEnd notes a string that began at start and has its closing quote at i.
func (s *scanner) strEnd(start, i int) int {
	if i-start >= longValue {
		s.long = append(s.long, span{uint32(start - 1), uint32(i + 1)})
	}
	return i + 1
}

// unicode checks the rest of an escape that is not one of simpleEscapes.
func (s *scanner) unicode(i int) int {
	if s.b[i] != 'u' {
		return s.unexpected(i, "in an escape")
	}
	for j := i + 1; j < i+5; j++ {
		if j >= len(s.b) || hexDigit(s.b[j]) < 0 {
			return s.unexpected(j, "in an escape")
		}
	}
	return i + 5
}

// The constants of a search in all eight bytes of a word at once.
const (
	lowBits   = 0x0101010101010101
	highBits  = 0x8080808080808080
	quotes    = lowBits * '"'
	slashes   = lowBits * '\\'
	firstText = lowBits * ' ' // bytes below are control characters
)

// stops returns a word whose lowest bit that is set is the high bit of the first byte of w that is a quote, a backslash or
// a control character. A byte of a difference has its high bit set where the byte it was taken from is smaller, up to the
// first such byte; a borrow can set others only above that one. Bytes that are not ASCII are left out at the end: neither
// xor changes a high bit.
func stops(w uint64) uint64 {
	q, e, c := (w^quotes)-lowBits, (w^slashes)-lowBits, w-firstText
	return (q | e | c) &^ w & highBits
}

// stop returns the first index from i on, at which b has a quote, a backslash or a control character, or len(b).
func stop(b []byte, i int) int {
	for ; i+16 <= len(b); i += 16 {
		m := stops(binary.LittleEndian.Uint64(b[i:]))
		n := stops(binary.LittleEndian.Uint64(b[i+8:]))
		switch {
		case m != 0:
			return i + bits.TrailingZeros64(m)>>3
		case n != 0:
			return i + 8 + bits.TrailingZeros64(n)>>3
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return i
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
