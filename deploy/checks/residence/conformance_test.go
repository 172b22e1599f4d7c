package main

import "testing"

func TestNeighbouringTextsAreMerged(t *testing.T) {
	chunk := func(text string) string {
		return `data: {"id":"x1","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null,"token_ids":null}]}` + "\n\n"
	}
	end := `data: {"id":"x2","choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}` + "\n\n"
	role := `data: {"id":"x1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	one := role + chunk(`a\"b`) + chunk("c") + chunk("d") + end
	other := role + chunk(`a\"`) + chunk("bcd") + end
	if a, b := string(merged([]byte(one))), string(merged([]byte(other))); a != b {
		t.Errorf("merged = %s, want %s", a, b)
	}
	last := `data: {"id":"x2","choices":[{"index":0,"delta":{"content":"d!"},"finish_reason":"stop"}]}` + "\n\n"
	if a, b := string(merged([]byte(one))), string(merged([]byte(role+chunk(`a\"bc`)+last))); a != b {
		t.Errorf("merged = %s, want %s, as when the last chunk has more", a, b)
	}
	if a, b := string(merged([]byte(one))), string(merged([]byte(role+chunk(`a\"bce`)+end))); a == b {
		t.Error("other text is the same")
	}
	if a, b := string(merged([]byte(role+chunk("a")+end))), string(merged([]byte(role+end+chunk("a")))); a == b {
		t.Error("another order is the same")
	}
}
