package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// prose returns n bytes of text that begins like no other: sentences of common words, with a number now and then, which
// a tokenizer cuts as it cuts real prose.
func prose(rng *rand.Rand, n int) string {
	var b strings.Builder
	words := strings.Fields(proseWords)
	for sentence := 0; b.Len() < n; sentence++ {
		for i := range 6 + rng.IntN(10) {
			word := words[rng.IntN(len(words))]
			switch {
			case i == 0:
				word = strings.ToUpper(word[:1]) + word[1:]
			case rng.IntN(12) == 0:
				b.WriteString(" " + string(rune('1'+rng.IntN(9))) + string(rune('0'+rng.IntN(10))))
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(word)
		}
		b.WriteString(". ")
	}
	return b.String()[:n]
}

// dense returns n bytes of which a tokenizer makes many tokens: words of hexadecimal digits.
func dense(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%08x ", rng.Uint32())
	}
	return b.String()[:n]
}

// repeated returns one sentence over and over, as a person writes a long prompt for a test.
func repeated(rng *rand.Rand, n int) string {
	sentence := prose(rng, 80) + "\n"
	return strings.Repeat(sentence, n/len(sentence)+1)[:n]
}

const proseWords = `about account across after again against agreement almost along already although always among amount
analysis another answer appear area argue around arrive article assume attack attention author available balance because
become before begin behind believe benefit better between beyond board border bring budget build business careful carry
category caution central century certain chance change chapter character claim clear close collect common company compare
complete concern condition consider contain content continue contract control correct could country course cover create
current customer damage decide decision degree deliver demand depend describe design detail develop different difficult
direct discover discuss distance document double early economy effect effort either element enough entire equal especially
establish estimate event every evidence exactly example except exchange exist expect experience explain express extra`
