package check

import (
	"net"
	"strconv"
	"testing"
)

func TestPortRangeAvoidsTheKernels(t *testing.T) {
	tests := []struct {
		name, give string
		first, end int
	}{
		{"default", "32768\t60999\n", lowestPort, 32768},
		{"unreadable", "", lowestPort, 32768},
		{"half", "20000", lowestPort, 32768},
		{"low", "1024\t50000\n", 50001, 65536},
		{"all", "1024\t65535\n", lowestPort, 65536},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if first, end := portRange(tt.give); first != tt.first || end != tt.end {
				t.Errorf("portRange(%q) = %d, %d; want %d, %d", tt.give, first, end, tt.first, tt.end)
			}
		})
	}
}

func TestEachPortIsHandedOutOnce(t *testing.T) {
	first := NewPorts().first
	p := &Ports{first: first, end: first + 300, next: first + 299, left: 300}
	seen := map[string]bool{}
	for {
		addr, err := p.Addr(t.Context())
		if err != nil {
			break
		}
		if seen[addr] {
			t.Fatalf("%s came twice", addr)
		}
		seen[addr] = true
	}
	// others on the machine may hold some
	if len(seen) < 200 || p.left != 0 {
		t.Errorf("%d of 300 ports were handed out, %d are left", len(seen), p.left)
	}
}

func TestBoundPortsAreNotHandedOut(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for _, a := range []net.Addr{l.Addr(), u.LocalAddr()} {
		_, port, err := net.SplitHostPort(a.String())
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		p := &Ports{first: n, end: n + 1, next: n, left: 1}
		if addr, err := p.Addr(t.Context()); err == nil {
			t.Errorf("%s is bound (%s) and was handed out", addr, a.Network())
		}
	}
}
