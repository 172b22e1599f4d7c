//go:build unix

package mesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/quic-go/quic-go"
)

const (
	idlePeers = 1000
	idleFor   = 10 * time.Second
	// idleCertificates makes the test binary the far ends of BenchmarkIdleConnections: its value is the folder of the CA.
	idleCertificates = "KVMESH_TEST_IDLE_PEERS"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(idleCertificates); dir != "" {
		if err := beIdlePeers(dir, os.Args[1]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// beIdlePeers connects idlePeers agents to the one at addr, says so, and stays until stdin is closed. They are no more than
// connections: what they cost is not counted.
func beIdlePeers(dir, addr string) error {
	ca, err := LoadAuthority(dir)
	if err != nil {
		return err
	}
	sock, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	tr := &quic.Transport{Conn: sock}
	slots, errs := make(chan struct{}, DefaultConfig().Timings.DialLimit), make([]error, idlePeers)
	var wg sync.WaitGroup
	for i := range idlePeers {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = beIdlePeer(tr, ca, netip.MustParseAddrPort(addr), idleHello(i))
			<-slots
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("connected")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func idleHello(i int) hello {
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(1+i))
	return hello{about: about{speaks: protocols{1, 1}, instance: uint64(i), quic: at}, name: fmt.Sprintf("p%03d", i), dial: 1}
}

func beIdlePeer(tr *quic.Transport, ca *Authority, hub netip.AddrPort, h hello) error {
	id, err := ca.Issue(h.name, time.Hour)
	if err != nil {
		return err
	}
	conf := tlsConfigs{speaks: h.about.speaks}.client(&id)
	qc, err := tr.Dial(context.Background(), net.UDPAddrFromAddrPort(hub), conf, quicConfig(DefaultConfig().Timings))
	if err != nil {
		return err
	}
	s, err := qc.OpenStreamSync(context.Background())
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Write(appendHello([]byte{byte(KindControl)}, h)); err != nil {
		return err
	}
	_, err = readHello(s)
	return err
}

// BenchmarkIdleConnections is what an agent pays for 1,000 peers with which it has nothing to do: memory and goroutines of
// its end of each connection, and CPU for keep-alives each second. The peers are in another process, on loopback.
func BenchmarkIdleConnections(b *testing.B) {
	for b.Loop() {
		idle(b)
	}
}

func idle(b *testing.B) {
	dir := b.TempDir()
	ca, err := EphemeralAuthority("bench")
	if err != nil {
		b.Fatal(err)
	}
	if err := ca.Write(dir); err != nil {
		b.Fatal(err)
	}
	c := DefaultConfig()
	c.QUICBind, c.GossipBind = "127.0.0.1:0", "127.0.0.1:0"
	c.MeshID, c.Name, c.GossipKeys = "bench", "hub", [][]byte{NewGossipKey()}
	if c.Identity, err = ca.Issue(c.Name, time.Hour); err != nil {
		b.Fatal(err)
	}
	m, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	go m.Run(context.Background())
	time.Sleep(time.Second)
	before := use()
	peers := exec.Command(os.Args[0], m.QUICAddr().String())
	peers.Env = append(os.Environ(), idleCertificates+"="+dir)
	stay, _ := peers.StdinPipe()
	said, _ := peers.StdoutPipe()
	if err := peers.Start(); err != nil {
		b.Fatal(err)
	}
	defer peers.Wait()
	defer stay.Close()
	if line, _ := bufio.NewReader(said).ReadString('\n'); strings.TrimSpace(line) != "connected" {
		b.Fatalf("the peers say %q", line)
	}
	for i := range idlePeers { // as gossip would tell
		h := idleHello(i)
		m.delegate.NotifyJoin(&memberlist.Node{Name: h.name, Addr: net.IPv4(127, 0, 0, 1), Port: 1, Meta: encodeAbout(h.about)})
	}
	time.Sleep(3 * time.Second)
	begin := use()
	time.Sleep(idleFor)
	end := use()
	if n := len(m.table.connected()); n != idlePeers {
		b.Fatalf("%d connections, want %d", n, idlePeers)
	}
	b.ReportMetric(float64(end.bytes-before.bytes)/1024/idlePeers, "KiB/conn")
	b.ReportMetric(float64(end.goroutines-before.goroutines)/idlePeers, "goroutines/conn")
	b.ReportMetric(100*(end.cpu-begin.cpu).Seconds()/idleFor.Seconds(), "%cpu")
	b.ReportMetric(0, "ns/op") // of no interest
}

// usage is what this process uses.
type usage struct {
	bytes      uint64 // of live objects and stacks
	goroutines int
	cpu        time.Duration // so far
}

func use() usage {
	runtime.GC()
	runtime.GC() // what finalizers of the first freed
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return usage{
		bytes: mem.HeapAlloc + mem.StackInuse, goroutines: runtime.NumGoroutine(),
		cpu: time.Duration(r.Utime.Nano() + r.Stime.Nano()),
	}
}
