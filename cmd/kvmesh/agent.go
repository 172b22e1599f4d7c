package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/mesh"
)

type agentCmd struct {
	Config kong.ConfigFlag `help:"YAML file with any of these flags as keys. Flags win over the environment, the environment over the file." placeholder:"FILE"`

	MeshID string   `help:"Name of the mesh; agents of another mesh are refused." default:"kvmesh"`
	Name   string   `help:"Name of this agent, unique in the mesh; by default the host name." placeholder:"NAME"`
	Zone   string   `help:"Where this agent and its engines stand: rack, room or availability zone. Of engines that are equally good, those of the same zone are taken first." placeholder:"ZONE"`
	Certs  string   `help:"Folder with ca.pem, NAME.pem, NAME-key.pem, gossip.key and perhaps revoked, as kvmesh cert makes them; all but gossip.key are read again twice a minute. Without it the agent stays alone on loopback." placeholder:"DIR"`
	Join   []string `help:"QUIC addresses of agents to join, HOST:PORT. A name may stand for many, and for this agent too." placeholder:"ADDR"`
	Engine []string `help:"An engine beside this agent: [NAME=]URL, then options after spaces: kind=vllm|sglang|trtllm|other, capacity-tokens=N, max-running=N, rank=N (one data-parallel rank of vLLM or SGLang: each is an engine of its own), queue=on|off, prefill-step=N, key-file=FILE, kv-events=off|tcp://HOST:PORT, kv-events-replay=tcp://HOST:PORT, kv-events-topic=PREFIX, kv-events-ranks=N, kv-events-bind=true. An engine that says where its KV events are needs none of the last five." placeholder:"ENGINE"`

	HTTP            string `name:"http" help:"Address that takes requests." default:":7080"`
	TLSCert         string `name:"tls-cert" help:"PEM file with the certificate that http is served with; without it, HTTP in clear." placeholder:"FILE"`
	TLSKey          string `name:"tls-key" help:"PEM file with the key of tls-cert." placeholder:"FILE"`
	QUICBind        string `name:"quic-bind" help:"Address for agents' connections (UDP)." default:":7081"`
	QUICAdvertise   string `name:"quic-advertise" help:"Address that other agents reach quic-bind at, when it is another." placeholder:"ADDR"`
	GossipBind      string `help:"Address for membership packets (UDP)." default:":7082"`
	GossipAdvertise string `help:"Address that other agents reach gossip-bind at, when it is another." placeholder:"ADDR"`
	Debug           string `help:"Address of the debug server; empty for none." default:"127.0.0.1:7083"`
	DebugTokenFile  string `help:"File with the token that the debug server asks for; needed when it is not on loopback." placeholder:"FILE"`

	MaxBody         int           `help:"Most bytes of one request's body." default:"67108864"`
	BodyBudget      int64         `help:"Most bytes of all request bodies held at once; by default 512 MiB, with a memory limit a quarter of it if that is less." placeholder:"BYTES"`
	MemoryLimit     int64         `help:"Bytes of memory that this agent may use; new requests get 503 when it nears them. By default the limit of its control group, if it has one." placeholder:"BYTES"`
	QueueLimit      int           `help:"Most requests held while every engine is full; past it clients get 429." default:"512"`
	QueueBytes      int64         `help:"Most bytes of their bodies, which are among those of body-budget." default:"268435456"`
	QueueTimeout    time.Duration `help:"How long a request is held while every engine is full, unless its class says otherwise." default:"10s"`
	Timeout         time.Duration `help:"Longest duration of a request." default:"30m"`
	DrainTimeout    time.Duration `help:"How long streams may take to finish at a stop; then they are cut. Whoever kills must wait some seconds longer." default:"25s"`
	DrainGrace      time.Duration `help:"How long connections are still taken at a stop: longer than load balancers take to see that readyz says no." default:"5s"`
	Policy          string        `help:"YAML file with the classes of traffic, each with its strategy (auto, session, prefix, load), until the mesh agrees on a policy (kvmesh policy apply); without either every request is routed by auto." placeholder:"FILE"`
	Data            string        `help:"Folder for what must outlive a restart: this agent's part in the agreed state (policy, cordons, revoked certificates). Agents with one can become voters." placeholder:"DIR"`
	BootstrapExpect int           `help:"How many agents with a data folder found the group that decides: the same number (3 or 5) on each of them, and more than half of how many they are. Needs data." placeholder:"N"`

	Explain bool `help:"Send x-kvmesh-engine, -overlap and -reason with answers." default:"true" negatable:""`

	LogLevel  slog.Level `help:"debug, info, warn or error." default:"info"`
	LogFormat string     `help:"text or json." enum:"text,json" default:"text"`
}

// Run runs an agent until the process is told to stop.
func (c *agentCmd) Run(ctx context.Context, file *problems) error {
	config, err := c.node()
	if err := errors.Join(errors.Join(file.errs...), err, config.Validate()); err != nil {
		return badConfig(err)
	}
	defer runtime.KeepAlive(setCollector(config.MemoryLimit))
	n, err := awaitPorts(ctx, config.Logger, config.DrainTimeout+portsMargin, func() (*node.Node, error) { return node.New(config) })
	if err != nil {
		return err
	}
	defer onSecondSignal(n.Hurry)()
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { tellSupervisor(running, n.Ready) })
	defer wg.Wait()
	defer stop()
	return n.Run(ctx)
}

// bodyBudget returns the flag, or what suits the memory limit: an owner may hold a body twice, as it came and with the fields
// that are added, and answers need room too.
func (c *agentCmd) bodyBudget(n *node.Config) int64 {
	const part = 4
	switch {
	case c.BodyBudget != 0:
		return c.BodyBudget
	case n.MemoryLimit > 0:
		return max(min(n.Forward.BodyBudget, n.MemoryLimit/part), int64(c.MaxBody))
	default:
		return n.Forward.BodyBudget
	}
}

// collectorShare is the part of the memory limit that the collector keeps the Go heap and stacks within: the rest is for
// what it does not see, buffers of sockets above all.
const collectorShare = 0.9

// spareHeap is what the collector takes for live though nothing is there, so that it runs a quarter as often: an agent's own
// heap is so small that a few prompts of 400 kB double it, and collections were a tenth of what their way cost. It takes no
// memory itself; the heap may grow by as much before it is collected.
const spareHeap = 32 << 20

// setCollector sets the collector for a process with a memory limit, 0 for none. What it returns is to be kept.
func setCollector(limit int64) (spare []byte) {
	const part = 16
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(collectorShare * float64(limit)))
	}
	if limit > 0 {
		return make([]byte, min(spareHeap, limit/part))
	}
	return make([]byte, spareHeap)
}

// node turns the flags into a node's configuration. Errors name the flag.
func (c *agentCmd) node() (node.Config, error) {
	n := node.DefaultConfig()
	var errs []error
	if c.Name == "" {
		c.Name, _ = os.Hostname()
	}
	n.Logger = c.logger()
	n.HTTP, n.Debug, n.DrainTimeout, n.DrainGrace = c.HTTP, c.Debug, c.DrainTimeout, c.DrainGrace
	n.Data, n.BootstrapExpect = c.Data, c.BootstrapExpect
	n.Forward.MaxBody, n.MemoryLimit = c.MaxBody, c.MemoryLimit
	if n.MemoryLimit == 0 {
		n.MemoryLimit = node.MemoryLimit(os.DirFS("/"))
	}
	n.Forward.BodyBudget = c.bodyBudget(&n)
	n.Forward.QueueLimit, n.Forward.QueueBytes, n.Forward.QueueTimeout = c.QueueLimit, c.QueueBytes, c.QueueTimeout
	n.Forward.Timeout, n.Forward.Explain, n.Forward.Zone = c.Timeout, c.Explain, c.Zone
	n.Mesh.MeshID, n.Mesh.Name, n.Mesh.Join = c.MeshID, c.Name, c.Join
	n.Mesh.QUICBind, n.Mesh.QUICAdvertise = c.QUICBind, c.QUICAdvertise
	n.Mesh.GossipBind, n.Mesh.GossipAdvertise = c.GossipBind, c.GossipAdvertise
	if mesh.LoopbackOnly(c.QUICBind, c.GossipBind) {
		n.Mesh.Timings = mesh.LocalConfig().Timings
	}
	errs = append(errs, c.identity(&n.Mesh))
	if c.DebugTokenFile != "" {
		token, err := secret(c.DebugTokenFile)
		errs = append(errs, wrap("debug-token-file", err))
		n.DebugToken = token
	}
	if c.TLSCert != "" || c.TLSKey != "" {
		cert, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		errs = append(errs, wrap("tls-cert, tls-key", err))
		n.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	if c.Policy != "" {
		p, text, err := loadPolicy(c.Policy)
		errs = append(errs, wrap("policy", err))
		n.Forward.Policy, n.PolicyText = p, text
	}
	for i, spec := range c.Engine {
		e, err := parseEngine(spec, i)
		errs = append(errs, wrap("engine", err))
		n.Engines = append(n.Engines, e)
	}
	return n, errors.Join(errs...)
}

// identity loads the agent's certificate and the gossip keys. Without certs it makes some that no other process can
// know, as it does when they cannot be loaded, so that the rest of the configuration can be looked at.
func (c *agentCmd) identity(m *mesh.Config) error {
	c.ephemeral(m)
	if c.Certs == "" {
		if !mesh.LoopbackOnly(c.QUICBind, c.GossipBind) {
			return errors.New("certs is missing: without certificates quic-bind and gossip-bind must be on loopback (127.0.0.1:PORT); kvmesh cert makes them")
		}
		c.logger().Warn("no certs given: this agent has a certificate authority of its own, and no other process can join it")
		return nil
	}
	id, err := mesh.LoadIdentity(c.Certs, c.Name)
	keys, keyErr := mesh.LoadGossipKeys(filepath.Join(c.Certs, mesh.GossipKeyFile))
	if err := errors.Join(err, keyErr); err != nil {
		return fmt.Errorf("certs: %w (kvmesh cert --dir %s --mesh-id %s %s makes what is missing)", err, c.Certs, c.MeshID, c.Name)
	}
	m.Identity, m.GossipKeys, m.Certs = id, keys, c.Certs
	return nil
}

// ephemeral makes an identity for this process alone. What is wrong with mesh-id or name is for Validate to say.
func (c *agentCmd) ephemeral(m *mesh.Config) {
	m.GossipKeys = [][]byte{mesh.NewGossipKey()}
	if ca, err := mesh.EphemeralAuthority(c.MeshID); err == nil {
		m.Identity, _ = ca.Issue(c.Name, 365*24*time.Hour)
	}
}

func (c *agentCmd) logger() *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

// parseEngine reads "[NAME=]URL [OPTION=VALUE ...]". The name of the i-th engine is engine0, engine1, … by default.
func parseEngine(spec string, i int) (node.EngineConfig, error) {
	e := node.EngineConfig{Name: fmt.Sprintf("engine%d", i)}
	fields := strings.Fields(spec)
	if len(fields) == 0 {
		return e, errors.New("is empty; it must be [NAME=]URL")
	}
	address := fields[0]
	if name, rest, ok := strings.Cut(address, "="); ok && !strings.ContainsAny(name, ":/") {
		e.Name, address = name, rest
	}
	u, err := url.Parse(address)
	if err != nil {
		return e, fmt.Errorf("%q must be [NAME=]http://HOST:PORT: %w", spec, err)
	}
	e.URL = u
	for _, option := range fields[1:] {
		if err := setEngineOption(&e, option); err != nil {
			return e, fmt.Errorf("%q: %w", spec, err)
		}
	}
	return e, nil
}

func setEngineOption(e *node.EngineConfig, option string) error {
	key, value, _ := strings.Cut(option, "=")
	var err error
	switch key {
	case "kind":
		e.Kind = engine.Kind(value)
		switch e.Kind {
		case engine.KindVLLM, engine.KindSGLang, engine.KindTRTLLM, engine.KindOther:
		default:
			err = fmt.Errorf("%q is none of vllm, sglang, trtllm, other", value)
		}
	case "capacity-tokens":
		e.CapacityTokens, err = strconv.ParseInt(value, 10, 64)
	case "max-running":
		e.MaxRunning, err = strconv.Atoi(value)
	case "queue":
		if e.NoQueue = value == "off"; value != "on" && value != "off" {
			err = fmt.Errorf("%q is neither on nor off", value)
		}
	case "prefill-step":
		e.PrefillStep, err = strconv.Atoi(value)
	case "rank":
		var rank int
		rank, err = strconv.Atoi(value)
		e.Rank = &rank
	case "key-file":
		e.APIKey, err = secret(value)
	case "kv-events", "kv-events-replay", "kv-events-topic", "kv-events-ranks", "kv-events-bind":
		err = setEventsOption(&e.Events, key, value)
	default:
		return fmt.Errorf("unknown option %q", key)
	}
	return wrap(key, err)
}

func setEventsOption(e *engineagent.Events, key, value string) (err error) {
	switch key {
	case "kv-events":
		if e.Off = value == "off"; !e.Off {
			e.Endpoint = value
		}
	case "kv-events-replay":
		e.Replay = value
	case "kv-events-topic":
		e.Topic = value
	case "kv-events-ranks":
		e.Ranks, err = strconv.Atoi(value)
	case "kv-events-bind":
		e.Bind, err = strconv.ParseBool(value)
	}
	return err
}

func secret(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(b))
	if s == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return s, nil
}

func wrap(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

var fieldName = regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+)\b`)

// badConfig prints every violation on a line of its own, by the name of its flag: a flag and its field share a name.
func badConfig(err error) error {
	text := fieldName.ReplaceAllStringFunc(err.Error(), kebab)
	return errors.New("bad configuration:\n  " + strings.ReplaceAll(text, "\n", "\n  "))
}

var wordStart = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

func kebab(field string) string {
	if field == "Identity" {
		return "certs"
	}
	return strings.ToLower(wordStart.ReplaceAllString(field, "$1$3-$2$4"))
}
