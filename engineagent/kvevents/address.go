package kvevents

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// address is a tcp:// endpoint.
type address struct {
	host string // "*" or "" for every interface; an IPv6 address has no brackets
	port int
}

const maxPort = 1<<16 - 1

// parseAddress splits an endpoint as engines do: the port comes after the last colon. So an IPv6 address may have
// brackets or not.
func parseAddress(endpoint string) (a address, err error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	colon := strings.LastIndexByte(rest, ':')
	if !ok || colon < 0 || len(endpoint) > maxName {
		return address{}, fmt.Errorf("KV event endpoint (%.100q) must be tcp://HOST:PORT", endpoint)
	}
	a.host = unbracketed(rest[:colon])
	odd := strings.ContainsAny(a.host, "/@?#[] \t\r\n")
	if odd || strings.Contains(a.host, ":") && net.ParseIP(zoneless(a.host)) == nil {
		return address{}, fmt.Errorf("KV event endpoint (%q) must be tcp://HOST:PORT: that is no host", endpoint)
	}
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	if err != nil || port == 0 {
		return address{}, fmt.Errorf("KV event endpoint (%q) must end in a port from 1 to %d", endpoint, maxPort)
	}
	a.port = int(port)
	return a, nil
}

func (a address) String() string { return "tcp://" + net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// everywhere reports whether the address is of every interface.
func (a address) everywhere() bool {
	ip := net.ParseIP(a.host)
	return a.host == "" || a.host == "*" || ip != nil && ip.IsUnspecified()
}

func isIPC(endpoint string) bool {
	return len(endpoint) > len("ipc://") && len(endpoint) <= maxName && strings.HasPrefix(endpoint, "ipc://")
}

func unbracketed(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		return inner[:len(inner)-1]
	}
	return host
}

// zoneless leaves out the interface of a link-local address.
func zoneless(host string) string {
	host, _, _ = strings.Cut(host, "%")
	return host
}

// loopback reports whether a host is this machine: none at all is, to who dials.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || sameName(host, "localhost") || ip != nil && ip.IsLoopback()
}

// sameName compares names as DNS does.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}
