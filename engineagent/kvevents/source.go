package kvevents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
)

// Source is where the KV events of one rank come from.
type Source struct {
	Endpoint string // of the publisher: tcp://HOST:PORT, or ipc://PATH
	Replay   string // of its replay socket; "" when it has none
	Topic    string // prefix of the topics to follow; "" follows all
	Rank     int
	Bind     bool // the publisher connects to us: Endpoint is where we listen
}

// Bounds of what an engine says about itself.
const (
	maxInfo    = 8 << 20 // SGLang's server info has every setting
	maxSources = 64
	maxName    = 1 << 10 // of an endpoint or a topic
	maxRank    = 1<<16 - 1
)

var errSources = errors.New("it is not a list of KV event sources")

// wireSource is one source as vLLM's GET /kv_event_sources names it.
type wireSource struct {
	Rank      *int   `json:"data_parallel_rank"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
	Publisher string `json:"publisher"`
	Enabled   *bool  `json:"enable_kv_cache_events"`
}

// ParseSources reads the answer to vLLM's GET /kv_event_sources in its three known shapes: a list, a list under
// "sources", and an object by rank. An engine that publishes nothing has no source.
func ParseSources(body []byte) ([]Source, error) {
	list, err := wireSources(body)
	if err != nil {
		return nil, fmt.Errorf("parse KV event sources: %w", err)
	}
	var out []Source
	for i, w := range list {
		if w.Endpoint == "" || w.Publisher != "" && w.Publisher != "zmq" || w.Enabled != nil && !*w.Enabled {
			continue
		}
		s := Source{Endpoint: w.Endpoint, Replay: w.Replay, Topic: w.Topic, Rank: i}
		if w.Rank != nil {
			s.Rank = *w.Rank
		}
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("parse KV event sources: %w", err)
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Source) int { return cmp.Compare(a.Rank, b.Rank) })
	return out, nil
}

func wireSources(body []byte) (list []wireSource, err error) {
	if len(body) > maxInfo {
		return nil, fmt.Errorf("more than %d bytes", maxInfo)
	}
	if body = bytes.TrimSpace(body); len(body) > 0 && body[0] == '[' {
		return decodeSources(body)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, errors.Join(errSources, err)
	}
	if wrapped, ok := object["sources"]; ok {
		return decodeSources(wrapped)
	}
	if len(object) > maxSources {
		return nil, fmt.Errorf("more than %d sources", maxSources)
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		rank, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %.100q is no rank", errSources, name)
		}
		var w wireSource
		if err := json.Unmarshal(object[name], &w); err != nil {
			return nil, errors.Join(errSources, err)
		}
		w.Rank = cmp.Or(w.Rank, &rank)
		list = append(list, w)
	}
	return list, nil
}

func decodeSources(body []byte) (list []wireSource, err error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, errors.Join(errSources, err)
	}
	if len(raw) > maxSources {
		return nil, fmt.Errorf("%d sources are more than %d", len(raw), maxSources)
	}
	list = make([]wireSource, len(raw))
	for i := range raw {
		if err := json.Unmarshal(raw[i], &list[i]); err != nil {
			return nil, errors.Join(errSources, err)
		}
	}
	return list, nil
}

func (s *Source) check() error {
	switch {
	case s.Rank < 0 || s.Rank > maxRank:
		return fmt.Errorf("rank %d is not from 0 to %d", s.Rank, maxRank)
	case len(s.Endpoint) > maxName || len(s.Replay) > maxName || len(s.Topic) > maxName:
		return fmt.Errorf("an endpoint or a topic of more than %d bytes", maxName)
	}
	return nil
}

// ParseServerInfo reads what SGLang's GET /server_info says of KV events. An engine that publishes none has no source.
func ParseServerInfo(body []byte) ([]Source, error) {
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
	if len(body) > maxInfo {
		return nil, fmt.Errorf("parse KV events of server info: more than %d bytes", maxInfo)
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return nil, fmt.Errorf("parse KV events of server info: %w", err)
	}
	e := info.Events
	if e == nil || e.Publisher != "zmq" {
		return nil, nil
	}
	endpoint := address{host: unbracketed(e.Host), port: e.Port}.String()
	sources, err := Expand(endpoint, e.Replay, max(e.Ranks, 1))
	if err != nil {
		return nil, fmt.Errorf("parse KV events of server info: %w", err)
	}
	for i := range sources {
		sources[i].Topic = e.Topic
		if err := sources[i].check(); err != nil {
			return nil, fmt.Errorf("parse KV events of server info: %w", err)
		}
	}
	return sources, nil
}

// Expand returns a source for each rank: engines add the rank to the port of both endpoints. replay is "" when there is
// none.
func Expand(endpoint, replay string, ranks int) ([]Source, error) {
	if ranks < 1 || ranks > maxSources {
		return nil, fmt.Errorf("expand KV event source: %d ranks are not from 1 to %d", ranks, maxSources)
	}
	var out []Source
	for rank := range ranks {
		s := Source{Rank: rank}
		var err error
		if s.Endpoint, err = ofRank(endpoint, rank); err != nil {
			return nil, fmt.Errorf("expand KV event source: %w", err)
		}
		if replay != "" {
			if s.Replay, err = ofRank(replay, rank); err != nil {
				return nil, fmt.Errorf("expand KV event source: %w", err)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

func ofRank(endpoint string, rank int) (string, error) {
	if isIPC(endpoint) && rank == 0 {
		return endpoint, nil
	}
	a, err := parseAddress(endpoint)
	if err != nil {
		return "", err
	}
	if a.port += rank; a.port > maxPort {
		return "", fmt.Errorf("KV event endpoint (%q) has no port for rank %d", endpoint, rank)
	}
	return a.String(), nil
}

// Resolve returns a source that the engine itself named, for the host at which the engine is reached: "every interface"
// is that host. A source on another one is refused: an address learned from an engine must not make the agent dial
// elsewhere.
func (s Source) Resolve(engineHost string) (Source, error) {
	var err error
	if s.Endpoint, err = resolve(s.Endpoint, unbracketed(engineHost)); err != nil {
		return Source{}, err
	}
	if s.Replay == "" {
		return s, nil
	}
	if s.Replay, err = resolve(s.Replay, unbracketed(engineHost)); err != nil {
		return Source{}, err
	}
	return s, nil
}

func resolve(endpoint, engineHost string) (string, error) {
	if isIPC(endpoint) && loopback(engineHost) {
		return endpoint, nil
	}
	a, err := parseAddress(endpoint)
	if err != nil {
		return "", err
	}
	if !a.everywhere() && !sameHost(a.host, engineHost) {
		return "", fmt.Errorf("KV event endpoint (%q) is not on the engine's host (%q): "+
			"name it in the configuration if it is meant", endpoint, engineHost)
	}
	a.host = engineHost
	return a.String(), nil
}

// sameHost reports whether two names are the same text or the same address, or both this machine. Nothing is looked up:
// who answers for a name may change.
func sameHost(a, b string) bool {
	if loopback(a) && loopback(b) {
		return true
	}
	x, y := net.ParseIP(a), net.ParseIP(b)
	if x != nil && y != nil {
		return x.Equal(y)
	}
	return sameName(a, b)
}
