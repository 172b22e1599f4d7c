package main

import "testing"

func TestWorstErrorIsOneWithoutAnyCachedToken(t *testing.T) {
	good, bad, none := repeat{overlap: 100, cached: 100}, repeat{overlap: 90, cached: 100}, repeat{}
	for _, order := range [][]repeat{{good, bad, none}, {none, bad, good}} {
		got := order[0]
		for _, r := range order[1:] {
			if compareFloat(r.relativeError(), got.relativeError()) > 0 {
				got = r
			}
		}
		if got != none {
			t.Errorf("worst of %v is %v", order, got)
		}
	}
}
