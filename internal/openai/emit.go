package openai

import (
	"bytes"
	"unicode/utf8"
)

// open begins a field.
func (w *walker) open(tag byte) { w.tag = tag }

// close ends the field.
func (w *walker) close() {
	w.flush()
	w.mark(w.tag | fieldEnd)
}

// mark yields a mark or the end of a field.
func (w *walker) mark(m byte) { w.emit(m, nil) }

func (w *walker) emit(tag byte, b []byte) {
	if w.done {
		return
	}
	w.done = !w.yield(tag, b)
}

func (w *walker) flush() {
	if w.n > 0 {
		n := w.n
		w.n = 0
		w.piece(w.buf[:n])
	}
}

func (w *walker) piece(b []byte) {
	if w.digesting {
		_, _ = w.digest.Write(b) // a hash takes everything
		return
	}
	w.emit(w.tag, b)
}

// put emits b: short pieces are gathered, long ones go out as they stand in the body.
func (w *walker) put(b []byte) {
	if len(b) > pieceSize/4 {
		w.flush()
		w.piece(b)
		return
	}
	if w.n+len(b) > pieceSize {
		w.flush()
	}
	w.n += copy(w.buf[w.n:], b)
}

func (w *walker) puts(s string) {
	if w.n+len(s) > pieceSize {
		w.flush()
	}
	w.n += copy(w.buf[w.n:], s)
}

// room makes place in the buffer for eight bytes: a rune, escaped or not, or a number.
func (w *walker) room() []byte {
	if w.n+8 > pieceSize {
		w.flush()
	}
	return w.buf[:w.n]
}

// text emits the string v, unescaped.
func (w *walker) text(v span) {
	for raw := w.d.inner(v); !w.done; {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			w.put(raw)
			return
		}
		w.put(raw[:i])
		if c := simpleEscapes[raw[i+1]]; c != 0 {
			w.putByte(c)
			raw = raw[i+2:]
			continue
		}
		r, n := unescapeUnicode(raw[i:])
		w.n = len(utf8.AppendRune(w.room(), r))
		raw = raw[i+n:]
	}
}

func (w *walker) putByte(c byte) {
	if w.n == pieceSize {
		w.flush()
	}
	w.buf[w.n] = c
	w.n++
}

// json emits the value v without the white space between its tokens, strings in their canonical form, and with spaced a
// space after each comma and colon, as Python writes JSON.
func (w *walker) json(v span, spaced bool) {
	if !v.ok() {
		return
	}
	b := w.d.b
	run := v.lo // what stands from here to i is canonical and not emitted yet
	for i := v.lo; i < v.hi && !w.done; {
		switch c := b[i]; {
		case c == '"':
			end := w.d.strEnd(i + 1)
			if inside := b[i+1 : end-1]; bytes.IndexByte(inside, '\\') >= 0 {
				w.put(b[run : i+1])
				w.escaped(inside)
				run = end - 1
			}
			i = end
		case c <= ' ':
			w.put(b[run:i])
			i++
			run = i
		case spaced && (c == ',' || c == ':'):
			i++
			w.put(b[run:i])
			w.puts(" ")
			run = i
		default:
			i++
		}
	}
	w.put(b[run:v.hi])
}

// escaped emits the inside of a string in its canonical form.
func (w *walker) escaped(raw []byte) {
	for !w.done {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			w.put(raw)
			return
		}
		w.put(raw[:i])
		r, n := unescape(raw[i:])
		w.n = len(appendEscaped(w.room(), r))
		raw = raw[i+n:]
	}
}

// value emits a string as its text and anything else as compact JSON.
func (w *walker) value(v span) {
	if w.d.kind(v) == kindString {
		w.text(v)
		return
	}
	w.json(v, false)
}

// field emits v as a whole field unless it says nothing.
func (w *walker) field(tag byte, v span) {
	if w.d.empty(v) {
		return
	}
	w.open(tag)
	w.value(v)
	w.close()
}

// fields emits those of the request's fields that are given, each as its name and its JSON.
func (w *walker) fields(nameTag, valueTag byte, names ...name) {
	for _, n := range names {
		if v := w.r.top[n]; v.ok() {
			w.open(nameTag)
			w.puts(n.String())
			w.close()
			w.open(valueTag)
			w.json(v, false)
			w.close()
		}
	}
}

// word emits a field that is not in the body.
func (w *walker) word(tag byte, s string) {
	w.open(tag)
	for s != "" && !w.done {
		n := min(len(s), pieceSize)
		w.puts(s[:n])
		s = s[n:]
	}
	w.close()
}
