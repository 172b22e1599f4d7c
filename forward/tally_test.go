package forward

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// tallyOf holds so many places of each tenant, written as "priority key requests bytes", each of the same size.
func tallyOf(t *testing.T, lines ...string) *tally {
	t.Helper()
	all := newTally()
	for _, line := range lines {
		var who tenant
		var n int
		var bytes int64
		if _, err := fmt.Sscan(line, &who.priority, &who.key, &n, &bytes); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			p := &place{tenant: who, bytes: bytes, state: placeWaits, number: uint64(i)}
			p.inAll = all.add(p)
		}
	}
	return all
}

func TestWhoGoesWhenTheQueueIsFull(t *testing.T) {
	requests, bytes := bounds{10, math.MaxInt64}, bounds{math.MaxInt, 1000}
	tests := []struct {
		name  string
		limit bounds
		have  []string
		p     place
		want  string // keys of those that go, or "stays out"
	}{
		{"nobody while there is room", requests, []string{"0 a 9 1"}, place{tenant: tenant{0, "b"}}, ""},
		{"a newcomer of the only key", requests, []string{"0 a 10 1"}, place{tenant: tenant{0, "a"}}, "stays out"},
		{"the heaviest key", requests, []string{"0 a 8 1", "0 b 1 1", "0 c 1 1"}, place{tenant: tenant{0, "b"}}, "a7"},
		{"the heaviest key, for one that has nothing", requests, []string{"0 a 2 1", "0 b 8 1"}, place{tenant: tenant{0, "c"}}, "b7"},
		{"a newcomer of the heaviest", requests, []string{"0 a 6 1", "0 b 4 1"}, place{tenant: tenant{0, "a"}}, "stays out"},
		{"nobody among those who hold as much", requests, []string{"0 a 5 1", "0 b 5 1"}, place{tenant: tenant{0, "b"}}, "stays out"},
		{"nobody when the newcomer would then hold more", requests, []string{"0 a 6 1", "0 b 5 1"}, place{tenant: tenant{0, "b"}}, "stays out"},
		{"a lower priority, however little it holds", requests, []string{"0 a 9 1", "-1 b 1 1"}, place{tenant: tenant{0, "a"}}, "b0"},
		{"the heaviest of the lowest", requests, []string{"0 a 5 1", "-1 b 2 1", "-1 c 3 1"}, place{tenant: tenant{1, "z"}}, "c2"},
		{"no higher priority", requests, []string{"1 a 10 1"}, place{tenant: tenant{0, "b"}}, "stays out"},
		{"several for one large body", bytes, []string{"0 a 9 100"}, place{tenant: tenant{0, "b"}, bytes: 350}, "a8 a7 a6"},
		{"the heaviest in bytes", bytes, []string{"0 a 9 10", "0 b 3 300"}, place{tenant: tenant{0, "c"}, bytes: 100}, "b2"},
		{"a body that none can make room for", bytes, []string{"0 a 9 100"}, place{tenant: tenant{0, "b"}, bytes: 1100}, "stays out"},
		{"a body that would hold more than it leaves", bytes, []string{"0 a 9 100"}, place{tenant: tenant{0, "b"}, bytes: 600}, "stays out"},
		{"none where none may wait", bounds{0, 1000}, nil, place{tenant: tenant{0, "a"}}, "stays out"},
	}
	for _, test := range tests {
		all := tallyOf(t, test.have...)
		out, ok := all.displace(&test.p, test.limit, nil)
		var names []string
		for _, v := range out {
			names = append(names, fmt.Sprint(v.key, v.number))
		}
		got := strings.Join(names, " ")
		if !ok {
			got = "stays out"
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestPlaceThatHasItsTurnIsNotTaken(t *testing.T) {
	all := tallyOf(t, "0 a 3 1")
	newest := all.shares[tenant{0, "a"}].places.Back()
	newest.Value.(*place).state = placeTurn
	out, ok := all.displace(&place{tenant: tenant{0, "b"}}, bounds{3, math.MaxInt64}, nil)
	if !ok || len(out) != 1 || out[0].number != 1 {
		t.Errorf("got %v, %v; want the one before it", out, ok)
	}
}

func TestPlaceThatWasAcceptedIsNotTaken(t *testing.T) {
	all := tallyOf(t, "0 a 3 1")
	newest := all.shares[tenant{0, "a"}].places.Back()
	newest.Value.(*place).accepted = true
	out, ok := all.displace(&place{tenant: tenant{0, "b"}}, bounds{3, math.MaxInt64}, nil)
	if !ok || len(out) != 1 || out[0].number != 1 {
		t.Errorf("got %v, %v; want the one before it", out, ok)
	}
	only := tallyOf(t, "-1 a 1 1")
	only.shares[tenant{-1, "a"}].places.Front().Value.(*place).accepted = true
	if out, ok := only.displace(&place{tenant: tenant{0, "b"}}, bounds{1, math.MaxInt64}, nil); ok {
		t.Errorf("got %v in place of one that was accepted", out)
	}
}

func TestTallyKeepsNoTenantThatHasLeft(t *testing.T) {
	all := tallyOf(t, "0 a 3 1", "1 b 2 5")
	for who, s := range all.shares {
		for e := s.places.Front(); e != nil; e = s.places.Front() {
			all.remove(e.Value.(*place), e)
		}
		if all.shares[who] != nil {
			t.Errorf("%v is still there", who)
		}
	}
	if all.requests != 0 || all.bytes != 0 {
		t.Errorf("%d requests, %d bytes are left", all.requests, all.bytes)
	}
}
