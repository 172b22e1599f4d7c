package simcluster

import (
	"net/netip"
	"sync"
	"time"
)

// links says which hosts UDP does not connect. It is safe for concurrent use.
type links struct {
	mu     sync.Mutex
	silent map[netip.Addr]bool
	cut    map[[2]netip.Addr]bool
}

func newLinks() *links { return &links{silent: map[netip.Addr]bool{}, cut: map[[2]netip.Addr]bool{}} }

func (l *links) blocked(from, to netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent[from.Addr()] || l.silent[to.Addr()] || l.cut[[2]netip.Addr{from.Addr(), to.Addr()}]
}

func (l *links) setSilent(a netip.Addr, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent[a] = on
}

func (l *links) setCut(from, to netip.Addr, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut[[2]netip.Addr{from, to}] = on
}

// Silence keeps all packets of agent i from its peers and theirs from it: to them it is as if it were stopped. Its
// clients and its engine still reach it.
func (c *Cluster) Silence(i int) { c.links.setSilent(c.host(i), true) }

// Resume ends a Silence.
func (c *Cluster) Resume(i int) { c.links.setSilent(c.host(i), false) }

// Cut keeps packets of agent i from agent j; those of j still reach i.
func (c *Cluster) Cut(i, j int) { c.links.setCut(c.host(i), c.host(j), true) }

// Mend ends a Cut.
func (c *Cluster) Mend(i, j int) { c.links.setCut(c.host(i), c.host(j), false) }

// SetLoss sets the share of UDP packets that are lost, 0 to 1.
func (c *Cluster) SetLoss(share float64) { c.net.udp.SetLoss(share) }

// SetRepeat sets the share of UDP packets that arrive twice, 0 to 1.
func (c *Cluster) SetRepeat(share float64) { c.net.udp.SetRepeat(share) }

// SetDelay sets how long UDP packets are under way, in place of the Config's.
func (c *Cluster) SetDelay(delay, jitter time.Duration) { c.net.udp.SetDelay(delay, jitter) }

// SetRate sets how many bytes a second of UDP each link carries; 0 lifts the bound.
func (c *Cluster) SetRate(bytesPerSecond int) { c.net.udp.SetRate(bytesPerSecond) }

// Partition lets UDP pass only between agents of one group; those in none form one more. Partition() heals.
func (c *Cluster) Partition(groups ...[]int) {
	var hosts [][]netip.Addr
	for _, g := range groups {
		var hs []netip.Addr
		for _, i := range g {
			hs = append(hs, c.host(i))
		}
		hosts = append(hosts, hs)
	}
	c.net.udp.Partition(hosts...)
}
