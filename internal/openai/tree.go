package openai

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"
)

// doc is a body that the scanner has accepted. Its methods rely on that: they do not check again, and given the span of
// a value of the body they stay inside it.
type doc struct {
	b    []byte
	long []span // see scanner.long
}

// kind is the type of a JSON value, as a bit, so that a set of kinds is their sum. Null counts as absent everywhere.
type kind uint8

const (
	kindString kind = 1 << iota
	kindNumber
	kindBool
	kindObject
	kindArray
)

func (k kind) String() string {
	var s string
	for i, name := range []string{"a string", "a number", "a boolean", "an object", "an array"} {
		if k&(1<<i) != 0 {
			if s != "" {
				s += " or "
			}
			s += name
		}
	}
	return s
}

// kind returns the kind of v, 0 for null and for no value.
func (d *doc) kind(v span) kind {
	if !v.ok() {
		return 0
	}
	switch d.b[v.lo] {
	case '"':
		return kindString
	case '{':
		return kindObject
	case '[':
		return kindArray
	case 't', 'f':
		return kindBool
	case 'n':
		return 0
	}
	return kindNumber
}

// root returns the body's one value.
func (d *doc) root() span {
	i := d.space(0)
	return span{i, d.end(i)}
}

func (d *doc) space(i uint32) uint32 {
	for int(i) < len(d.b) && d.b[i] <= ' ' {
		i++
	}
	return i
}

// end returns the index after the value that begins at i.
func (d *doc) end(i uint32) uint32 {
	switch d.b[i] {
	case '"':
		return d.strEnd(i + 1)
	case '{', '[':
		return d.nestEnd(i)
	}
	for int(i) < len(d.b) && d.b[i] > ' ' && d.b[i] != ',' && d.b[i] != ']' && d.b[i] != '}' {
		i++
	}
	return i
}

// near is how far the end of a value is looked for before it is looked up: a search in the list costs about as much as
// reading this much.
const near = 64

// nestEnd returns the index after the object or array that begins at i.
func (d *doc) nestEnd(i uint32) uint32 {
	start, looked := i, false
	for open := 0; ; {
		if i-start >= near && !looked {
			if end, ok := d.lookUp(start); ok {
				return end
			}
			looked = true
		}
		switch d.b[i] {
		case '"':
			i = d.strEnd(i + 1)
			continue
		case '{', '[':
			open++
		case '}', ']':
			if open--; open == 0 {
				return i + 1
			}
		}
		i++
	}
}

// lookUp returns the end of the long value that begins at i.
func (d *doc) lookUp(i uint32) (uint32, bool) {
	lo, hi := 0, len(d.long)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); d.long[mid].lo < i {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(d.long) && d.long[lo].lo == i {
		return d.long[lo].hi, true
	}
	return 0, false
}

// strEnd returns the index after the closing quote of the string whose first byte is at i.
func (d *doc) strEnd(i uint32) uint32 {
	j, limit := int(i), min(len(d.b), int(i)+near)
	for {
		if j = stop(d.b[:limit], j); j >= limit {
			break
		}
		if d.b[j] == '"' {
			return uint32(j) + 1
		}
		j += 2
	}
	if end, ok := d.lookUp(i - 1); ok {
		return end
	}
	for {
		if j = stop(d.b, j); d.b[j] == '"' {
			return uint32(j) + 1
		}
		j += 2
	}
}

// cursor goes over the members of an object or the elements of an array.
type cursor struct {
	d     *doc
	i     uint32
	ended bool // token has come to the end
}

// in returns a cursor at the first member or element of v, which must be an object or an array.
func (d *doc) in(v span) cursor { return cursor{d: d, i: v.lo + 1} }

// elem returns the next element of an array.
func (c *cursor) elem() (span, bool) {
	i := c.d.space(c.i)
	if c.d.b[i] == ',' {
		i = c.d.space(i + 1)
	}
	if c.d.b[i] == ']' {
		return span{}, false
	}
	v := span{i, c.d.end(i)}
	c.i = v.hi
	return v, true
}

// token returns the next element of an array of token ids: integers of 32 bits without sign, fraction or exponent. It is
// elem for prompts of 100,000 of them. An element that is none ends nothing, but the cursor cannot go on from it.
func (c *cursor) token() (id uint32, ok bool) {
	b := c.d.b
	i := c.d.space(c.i)
	if b[i] == ',' {
		i = c.d.space(i + 1)
	}
	if b[i] == ']' {
		c.ended = true
		return 0, false
	}
	start, n := i, uint64(0)
	for ; '0' <= b[i] && b[i] <= '9' && i-start < 10; i++ {
		n = n*10 + uint64(b[i]-'0')
	}
	c.i = i
	whole := b[i] == ',' || b[i] == ']' || b[i] <= ' '
	return uint32(n), i > start && whole && n <= math.MaxUint32
}

// member returns the next member of an object: its name as it stands in the body, without quotes, and its value.
func (c *cursor) member() (key []byte, v span, ok bool) {
	d := c.d
	i := d.space(c.i)
	if d.b[i] == ',' {
		i = d.space(i + 1)
	}
	if d.b[i] == '}' {
		return nil, span{}, false
	}
	end := d.strEnd(i + 1)
	key = d.b[i+1 : end-1]
	i = d.space(d.space(end) + 1)
	v = span{i, d.end(i)}
	c.i = v.hi
	return key, v, true
}

// fill puts the members of the object v that have a name of the table into m, which must be empty; nothing if v is no
// object. Of members with one name the last counts, as in Python. Null members are absent.
func (d *doc) fill(v span, m *members) {
	if d.kind(v) != kindObject {
		return
	}
	for c := d.in(v); ; {
		key, v, ok := c.member()
		if !ok {
			return
		}
		if n := nameOf(key); n != 0 {
			if d.kind(v) == 0 {
				v = span{}
			}
			m[n] = v
		}
	}
}

// inner returns the bytes of the string v between its quotes, escapes as they stand.
func (d *doc) inner(v span) []byte {
	if d.kind(v) != kindString {
		return nil
	}
	return d.b[v.lo+1 : v.hi-1]
}

// text returns the string v, unescaped, when it takes at most limit bytes in the body, else "".
func (d *doc) text(v span, limit int) string {
	raw := d.inner(v)
	if len(raw) > limit {
		return ""
	}
	return string(appendUnescaped(nil, raw))
}

// word returns the string v unescaped, for a switch over the few words that a field may be.
func (d *doc) word(v span) []byte {
	raw := d.inner(v)
	if len(raw) > maxEscapedName || bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	return appendUnescaped(nil, raw)
}

// is reports whether v is the string s.
func (d *doc) is(v span, s string) bool {
	if d.kind(v) != kindString {
		return false
	}
	rest, ok := cutPrefix(d.inner(v), s)
	return ok && len(rest) == 0
}

// isTrue reports whether v is true.
func (d *doc) isTrue(v span) bool { return v.ok() && d.b[v.lo] == 't' }

// empty reports whether v says nothing: absent, null, or the empty string.
func (d *doc) empty(v span) bool {
	k := d.kind(v)
	return k == 0 || k == kindString && v.hi-v.lo == 2
}

// integer returns the integer v.
func (d *doc) integer(v span) (int, bool) {
	if d.kind(v) != kindNumber || v.hi-v.lo > 20 {
		return 0, false
	}
	n, err := strconv.Atoi(string(d.b[v.lo:v.hi]))
	return n, err == nil
}

// cutPrefix returns what follows s in raw, the inside of a string, if the unescaped string begins with s.
func cutPrefix(raw []byte, s string) ([]byte, bool) {
	for s != "" {
		if len(raw) == 0 {
			return nil, false
		}
		var buf [utf8.UTFMax]byte
		part, n := raw[:1], 1
		if raw[0] == '\\' {
			var r rune
			r, n = unescape(raw)
			part = utf8.AppendRune(buf[:0], r)
		}
		if len(part) > len(s) || string(part) != s[:len(part)] {
			return nil, false
		}
		s, raw = s[len(part):], raw[n:]
	}
	return raw, true
}
