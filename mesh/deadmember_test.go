package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// Members that nobody can connect to, such as whoever holds the gossip key can make up, do not keep an agent from those that
// are there: they are tried again in places of their own.
func TestDeadMembersKeepNobodyFromTheLiving(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		start := func(name string, seeds ...string) *agent {
			c := w.config(name, seeds...)
			c.Timings = DefaultConfig().Timings
			c.Timings.DialLimit = 4
			x := w.run(c)
			for i := range 100 {
				at := netip.AddrPortFrom(netip.MustParseAddr("10.9.9.9"), uint16(1000+i))
				x.delegate.NotifyJoin(&memberlist.Node{
					Name: fmt.Sprintf("dead%d", i), Addr: net.IPv4(10, 9, 9, 9), Port: 1,
					Meta: encodeAbout(about{speaks: protocols{1, 1}, instance: uint64(i + 1), quic: at}),
				})
			}
			return x
		}
		a := start("a")
		b := start("b", a.QUICAddr().String())
		time.Sleep(5 * time.Minute) // all were tried
		c := start("c", a.QUICAddr().String())
		await(t, 15*time.Second, "a newcomer is connected to all", fullMesh(a, b, c))
	})
}
