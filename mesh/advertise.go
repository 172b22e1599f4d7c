package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// advertised returns the address that peers are told: the one that is wanted, or the bound one, or where that names no
// interface the best of this machine's.
func advertised(bound net.Addr, want string) (netip.AddrPort, error) {
	at := addrPort(bound)
	if want != "" {
		ap, err := netip.ParseAddrPort(want)
		if err != nil {
			return ap, fmt.Errorf("read advertise address: %w", err)
		}
		if ap.Port() == 0 {
			ap = netip.AddrPortFrom(ap.Addr(), at.Port())
		}
		at = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	if !at.Addr().IsUnspecified() {
		return at, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return at, fmt.Errorf("list interface addresses: %w", err)
	}
	ip, err := bestAddr(at.Addr().Is4(), addrs)
	return netip.AddrPortFrom(ip, at.Port()), err
}

// bestAddr chooses what others can most probably reach: private IPv4 before other IPv4 before IPv6, and loopback only
// when there is nothing else. The first of equals is taken, which is the order of the interfaces.
func bestAddr(only4 bool, addrs []net.Addr) (netip.Addr, error) {
	var all []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && (p.Addr().Is4() || !only4) && !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p.Addr())
		}
	}
	if len(all) == 0 {
		return netip.Addr{}, fmt.Errorf("choose an advertise address: this machine has none, name one")
	}
	slices.SortStableFunc(all, func(a, b netip.Addr) int { return addrRank(a) - addrRank(b) })
	return all[0], nil
}

func addrRank(a netip.Addr) int {
	switch {
	case a.IsLoopback():
		return 3
	case a.Is4() && a.IsPrivate():
		return 0
	case a.Is4():
		return 1
	}
	return 2
}
