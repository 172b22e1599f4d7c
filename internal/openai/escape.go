package openai

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// simpleEscapes are what an escape of one byte after the backslash stands for; 0 for a byte that makes none.
var simpleEscapes = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// unescape returns what the escape at the start of raw, the checked inside of a string, stands for, and its length.
// A surrogate without its other half is U+FFFD.
func unescape(raw []byte) (rune, int) {
	if c := simpleEscapes[raw[1]]; c != 0 {
		return rune(c), 2
	}
	return unescapeUnicode(raw)
}

func unescapeUnicode(raw []byte) (rune, int) {
	r := hex4(raw[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
		if full := utf16.DecodeRune(r, hex4(raw[8:])); full != utf8.RuneError {
			return full, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r = r<<4 | rune(hexDigit(c))
	}
	return r
}

// appendUnescaped appends the string that raw, the checked inside of a string, stands for.
func appendUnescaped(b, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(b, raw...)
		}
		b = append(b, raw[:i]...)
		r, n := unescape(raw[i:])
		b = utf8.AppendRune(b, r)
		raw = raw[i+n:]
	}
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends r as it stands inside a string in the canonical form: quotes, backslashes and control
// characters escaped, the shortest way; everything else as it is.
func appendEscaped(b []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(b, '\\', byte(r))
	case '\b':
		return append(b, `\b`...)
	case '\f':
		return append(b, `\f`...)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	if r < ' ' {
		return append(b, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
	}
	return utf8.AppendRune(b, r)
}

// appendQuoted appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		b = appendEscaped(b, r)
	}
	return append(b, '"')
}

func appendQuotedOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendQuoted(b, s)
}
