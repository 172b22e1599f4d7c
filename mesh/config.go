package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MaxMeta is the most bytes of Config.Meta: they ride in every alive message, of which a mesh of 1,000 agents can
// absorb about five a second.
const MaxMeta = 128

// Config is what a Mesh needs. Start from DefaultConfig or LocalConfig.
type Config struct {
	MeshID string // peers of another mesh are refused; lower-case letters, digits, '-' and '.', at most 63
	Name   string // unique in the mesh; letters, digits, '.', '_' and '-', at most 63

	Identity   Identity // must name MeshID and Name
	GossipKeys [][]byte // AES-256 keys of gossip; the first encrypts, all decrypt, so that keys can be changed

	// Certs is the folder that both came from. Its identity and its RevokedFile are read again now and then, and gossip keys
	// that change are written to its GossipKeyFile. Empty: nothing is read or written.
	Certs string

	// Addresses are host:port with an IP address as host; port 0 takes a free one. An empty advertise address is the
	// bind address, or an address of this machine's interfaces where bind names none ("0.0.0.0", "::").
	QUICBind, QUICAdvertise     string
	GossipBind, GossipAdvertise string

	// Join lists seeds: QUIC addresses or names with a port. A name may have many addresses, they are looked up again
	// for every try, and this agent's own may be among them. Empty: this agent waits to be joined.
	Join []string

	Meta []byte // opaque, at most MaxMeta bytes: what all peers should know of this agent (zone, roles); SetMeta changes it

	Peers     PeerHandler     // nil: nobody is told
	Streams   StreamHandler   // nil: streams are refused
	Datagrams DatagramHandler // nil: they are dropped
	State     StateHandler    // nil: push/pull carries membership only

	ListenPacket func(network, addr string) (net.PacketConn, error)           // nil: net.ListenPacket
	LookupHost   func(ctx context.Context, host string) ([]netip.Addr, error) // nil: net.DefaultResolver
	Logger       *slog.Logger                                                 // nil: nothing is logged
	Registerer   prometheus.Registerer                                        // nil: metrics are kept, not shown
	Now          func() time.Time                                             // nil: time.Now; what certificates are compared with
	Timings      Timings                                                      // zero: those of DefaultConfig

	protocols protocols // zero: those that this package speaks; tests have others
}

// Timings are the periods and bounds of a Mesh.
type Timings struct {
	// HandshakeTimeout bounds dial, TLS and hello. Shorter refuses slow machines, longer holds a dial slot.
	HandshakeTimeout time.Duration
	// IdleTimeout after a silent connection's last sign of life it is closed, which ends its streams; with the
	// keep-alive in between, a peer that vanishes is noticed after IdleTimeout to IdleTimeout + KeepAlive. Shorter
	// turns a pause of the machine into broken streams, longer keeps streams of the dead.
	IdleTimeout time.Duration
	// KeepAlive is the silence after which a ping is sent: two packets of about 70 B on the wire for each connection
	// and period, none where traffic flows anyway (a heartbeat a second, say). It must be at most half of
	// IdleTimeout, or one lost ping closes a connection.
	KeepAlive time.Duration
	// PingTimeout bounds the wait for an old connection's answer when a second agent claims its name.
	PingTimeout time.Duration
	// HeadStart is how long the greater of two names waits for the smaller to dial: longer saves double dials in a
	// slow network, shorter connects sooner where only the greater can dial.
	HeadStart time.Duration

	// A failed dial to a member, or of a seed, is tried again after RetryMin, doubled to RetryMax, each with jitter.
	RetryMin, RetryMax time.Duration
	// RejoinInterval is the period of looking for the other half of a split mesh: seeds without a connection and one
	// remembered dead peer are dialed. Costs one lookup for each named seed.
	RejoinInterval time.Duration
	// ForgetAfter is how long a dead peer is remembered for that.
	ForgetAfter time.Duration
	// DialLimit bounds handshakes under way: a joining agent dials all peers, and each costs about 1.3 ms of CPU. As many more
	// may be tried again, with peers that did not answer the last time.
	DialLimit int

	// SettlePoll is the period at which the membership is compared; after three equal ones, or SettleTimeout, the mesh
	// has settled.
	SettlePoll, SettleTimeout time.Duration

	// The periods of memberlist; see its Config.
	GossipInterval, ProbeInterval, ProbeTimeout, PushPullInterval, GossipToTheDead time.Duration
	// SuspicionMult times log10(N) probe intervals is how long a silent member stays alive to gossip.
	SuspicionMult int
	// DeadNodeReclaim after its death an agent's name may appear at another address. The handshake guards names by
	// certificate, so this needs no more than to outlive a short partition.
	DeadNodeReclaim time.Duration
}

// DefaultConfig returns the values for a mesh over a local network or between zones of one region.
func DefaultConfig() Config {
	return Config{
		QUICBind:   ":7081",
		GossipBind: ":7082",
		Timings: Timings{
			HandshakeTimeout: 3 * time.Second,
			IdleTimeout:      3 * time.Second, // what a waiting client can bear; heartbeats above notice sooner
			KeepAlive:        time.Second,     // three tries within IdleTimeout
			PingTimeout:      time.Second,
			HeadStart:        500 * time.Millisecond, // gossip reaches 64 agents in about 1 s
			RetryMin:         100 * time.Millisecond, // agents of one deployment start within a second
			RetryMax:         15 * time.Second,
			RejoinInterval:   10 * time.Second,
			ForgetAfter:      time.Hour,
			DialLimit:        16, // half of quic-go's accept queue, as one seed sees it
			SettlePoll:       500 * time.Millisecond,
			SettleTimeout:    10 * time.Second,
			GossipInterval:   200 * time.Millisecond,
			ProbeInterval:    time.Second,
			ProbeTimeout:     500 * time.Millisecond,
			PushPullInterval: 30 * time.Second,
			GossipToTheDead:  60 * time.Second,
			SuspicionMult:    4,
			DeadNodeReclaim:  5 * time.Second,
		},
	}
}

// LocalConfig is DefaultConfig for agents on one machine, except: loopback only, free ports, and quicker.
func LocalConfig() Config {
	c := DefaultConfig()
	c.QUICBind, c.GossipBind = "127.0.0.1:0", "127.0.0.1:0"
	c.Timings.HeadStart = 100 * time.Millisecond
	c.Timings.RetryMax = 5 * time.Second
	c.Timings.RejoinInterval = time.Second
	c.Timings.SettlePoll = 100 * time.Millisecond
	c.Timings.SettleTimeout = 3 * time.Second
	c.Timings.GossipInterval = 50 * time.Millisecond
	c.Timings.ProbeInterval = 500 * time.Millisecond
	c.Timings.ProbeTimeout = 200 * time.Millisecond
	c.Timings.PushPullInterval = 5 * time.Second
	c.Timings.SuspicionMult = 3
	c.Timings.DeadNodeReclaim = time.Second
	return c
}

func (c Config) withDefaults() Config {
	if c.ListenPacket == nil {
		c.ListenPacket = net.ListenPacket
	}
	if c.LookupHost == nil {
		c.LookupHost = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.protocols == (protocols{}) {
		c.protocols = protocols{oldest: oldestProtocol, newest: newestProtocol}
	}
	if c.Timings == (Timings{}) {
		c.Timings = DefaultConfig().Timings
	}
	return c
}

var (
	meshPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
)

// Validate returns all that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(meshPattern.MatchString(c.MeshID),
		"MeshID (%q) must be lower-case letters, digits, '-' and '.', at most 63", c.MeshID)
	check(namePattern.MatchString(c.Name), "Name (%q) must be letters, digits, '.', '_' and '-', at most 63", c.Name)
	check(len(c.Meta) <= MaxMeta, "Meta (%d bytes) must be at most %d", len(c.Meta), MaxMeta)
	check(len(c.GossipKeys) > 0 && len(c.GossipKeys) <= maxGossipKeys, "GossipKeys (%d) must be 1 to %d", len(c.GossipKeys), maxGossipKeys)
	for i, k := range c.GossipKeys {
		check(len(k) == GossipKeyBytes, "GossipKeys[%d] (%d bytes) must be %d bytes", i, len(k), GossipKeyBytes)
	}
	for _, s := range c.Join {
		_, _, err := net.SplitHostPort(s)
		check(err == nil, "Join (%q) must be host:port", s)
	}
	if err := c.Identity.Check(c.MeshID, c.Name, c.withDefaults().Now()); err != nil {
		errs = append(errs, fmt.Errorf("Identity: %w", err))
	}
	return errors.Join(append(errs, c.Timings.Validate())...)
}

// Validate returns all that is wrong with t.
func (t Timings) Validate() error {
	var errs []error
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"HandshakeTimeout", t.HandshakeTimeout},
		{"IdleTimeout", t.IdleTimeout},
		{"KeepAlive", t.KeepAlive},
		{"PingTimeout", t.PingTimeout},
		{"RetryMin", t.RetryMin},
		{"RejoinInterval", t.RejoinInterval},
		{"ForgetAfter", t.ForgetAfter},
		{"SettlePoll", t.SettlePoll},
		{"SettleTimeout", t.SettleTimeout},
		{"GossipInterval", t.GossipInterval},
		{"ProbeInterval", t.ProbeInterval},
		{"ProbeTimeout", t.ProbeTimeout},
		{"PushPullInterval", t.PushPullInterval},
	} {
		if d.d <= 0 {
			errs = append(errs, fmt.Errorf("%s (%v) must be above 0", d.name, d.d))
		}
	}
	if 2*t.KeepAlive > t.IdleTimeout {
		errs = append(errs, fmt.Errorf("KeepAlive (%v) must be at most half of IdleTimeout (%v)", t.KeepAlive, t.IdleTimeout))
	}
	if t.RetryMax < t.RetryMin {
		errs = append(errs, fmt.Errorf("RetryMax (%v) must be at least RetryMin (%v)", t.RetryMax, t.RetryMin))
	}
	if t.DialLimit < 1 || t.SuspicionMult < 1 {
		errs = append(errs, fmt.Errorf("DialLimit (%d) and SuspicionMult (%d) must be above 0", t.DialLimit, t.SuspicionMult))
	}
	return errors.Join(errs...)
}
