package kvevents

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Source is where the KV events of one rank come from.
type Source struct {
	Endpoint string // of the publisher: tcp://HOST:PORT, or ipc://PATH
	Replay   string // of its replay socket; "" when it has none
	Topic    string // prefix of the topics to follow; "" follows all
	Rank     int
	Bind     bool // the publisher connects to us: Endpoint is where we listen
}

// maxSources bounds the sources of one engine.
const maxSources = 64

var errSources = errors.New("not a list of KV event sources")

// wireSource is one source as vLLM's GET /kv_event_sources names it.
type wireSource struct {
	Rank     *int    `json:"data_parallel_rank"`
	Endpoint string  `json:"endpoint"`
	Replay   *string `json:"replay_endpoint"`
	Topic    string  `json:"topic"`
	Enabled  *bool   `json:"enable_kv_cache_events"`
}

// ParseSources reads the answer to GET /kv_event_sources in its three known shapes: a list, a list under "sources", and an
// object by rank (vLLM 0.32).
func ParseSources(body []byte) ([]Source, error) {
	var wrapped struct {
		Sources []wireSource `json:"sources"`
	}
	var list []wireSource
	var byRank map[string]wireSource
	switch {
	case json.Unmarshal(body, &list) == nil:
	case json.Unmarshal(body, &wrapped) == nil && wrapped.Sources != nil:
		list = wrapped.Sources
	case json.Unmarshal(body, &byRank) == nil:
		for name, w := range byRank {
			if rank, err := strconv.Atoi(name); err == nil && w.Rank == nil {
				w.Rank = &rank
			}
			list = append(list, w)
		}
	default:
		return nil, fmt.Errorf("parse KV event sources: %w", errSources)
	}
	return sourcesOf(list)
}

func sourcesOf(list []wireSource) ([]Source, error) {
	if len(list) > maxSources {
		return nil, fmt.Errorf("parse KV event sources: %d are more than %d", len(list), maxSources)
	}
	var out []Source
	for i, w := range list {
		if w.Endpoint == "" || w.Enabled != nil && !*w.Enabled {
			continue
		}
		s := Source{Endpoint: w.Endpoint, Topic: w.Topic, Rank: i}
		if w.Rank != nil {
			s.Rank = *w.Rank
		}
		if w.Replay != nil {
			s.Replay = *w.Replay
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Source) int { return a.Rank - b.Rank })
	return out, nil
}

// ParseServerInfo reads what SGLang's GET /server_info says of KV events, and the tokens of a page. Without any, it
// returns no source.
func ParseServerInfo(body []byte) (sources []Source, err error) {
	var info struct {
		Events *struct {
			Publisher string `json:"publisher"`
			Host      string `json:"endpoint_host"`
			Port      int    `json:"endpoint_port_base"`
			Topic     string `json:"topic"`
			Ranks     int    `json:"dp_size"`
			Replay    string `json:"replay_endpoint"`
		} `json:"kv_events"`
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return nil, fmt.Errorf("parse KV events of server info: %w", err)
	}
	e := info.Events
	if e == nil || e.Publisher != "zmq" || e.Port <= 0 {
		return nil, nil
	}
	endpoint := "tcp://" + net.JoinHostPort(strings.Trim(e.Host, "[]"), strconv.Itoa(e.Port))
	sources, err = Expand(endpoint, e.Replay, max(e.Ranks, 1))
	for i := range sources {
		sources[i].Topic = e.Topic
	}
	return sources, err
}

// Expand returns a source for each rank: engines add the rank to the port of both endpoints.
func Expand(endpoint, replay string, ranks int) ([]Source, error) {
	if ranks < 1 || ranks > maxSources {
		return nil, fmt.Errorf("expand KV event source: %d ranks are not 1 to %d", ranks, maxSources)
	}
	var out []Source
	for rank := range ranks {
		s := Source{Rank: rank}
		var err error
		if s.Endpoint, err = addPort(endpoint, rank); err != nil {
			return nil, err
		}
		if replay != "" {
			if s.Replay, err = addPort(replay, rank); err != nil {
				return nil, err
			}
		}
		out = append(out, s)
	}
	return out, nil
}

func addPort(endpoint string, n int) (string, error) {
	if n == 0 {
		return endpoint, nil
	}
	host, port, err := hostPort(endpoint)
	if err != nil {
		return "", err
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port+n)), nil
}

func hostPort(endpoint string) (host string, port int, err error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", 0, fmt.Errorf("KV event endpoint (%q) must be tcp://HOST:PORT", endpoint)
	}
	host, digits, err := net.SplitHostPort(rest)
	if err == nil {
		port, err = strconv.Atoi(digits)
	}
	if err == nil && (port < 0 || port > 65535) {
		err = errors.New("port out of range")
	}
	if err != nil {
		return "", 0, fmt.Errorf("KV event endpoint (%q) must be tcp://HOST:PORT: %w", endpoint, err)
	}
	return host, port, nil
}

// Resolve fills in the engine's host where a source that the engine named says "every interface", and refuses one on
// another host: an address learned from an engine must not make the agent dial elsewhere.
func (s Source) Resolve(engineHost string) (Source, error) {
	var err error
	if s.Endpoint, err = resolve(s.Endpoint, engineHost); err != nil {
		return Source{}, err
	}
	if s.Replay != "" {
		s.Replay, err = resolve(s.Replay, engineHost)
	}
	return s, err
}

func resolve(endpoint, engineHost string) (string, error) {
	host, port, err := hostPort(endpoint)
	if err != nil {
		return "", err
	}
	if !slices.Contains([]string{"", "*", "0.0.0.0", "::"}, host) && !sameHost(host, engineHost) {
		return "", fmt.Errorf("KV event endpoint (%q) is not on the engine's host: name it in the configuration", endpoint)
	}
	return "tcp://" + net.JoinHostPort(engineHost, strconv.Itoa(port)), nil
}

// sameHost reports whether two names are the same text, or both this machine.
func sameHost(a, b string) bool { return a == b || loopback(a) && loopback(b) }

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
