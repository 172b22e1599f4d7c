package kvevents

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/zmtp"
)

func TestParseSources(t *testing.T) {
	zero := Source{Endpoint: "tcp://10.0.0.1:5557"}
	for _, tt := range []struct {
		name, body string
		want       []Source
	}{
		{
			"list", `[{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:5557","replay_endpoint":null,"topic":""}]`,
			[]Source{zero},
		},
		{"list in any order, with more fields", `[
			{"data_parallel_rank":1,"endpoint":"tcp://h:2","replay_endpoint":"tcp://h:12","topic":"kv","hwm":9,"new":{"a":[1]}},
			{"data_parallel_rank":0,"endpoint":"tcp://h:1","replay_endpoint":"tcp://h:11","topic":"kv"}]`, []Source{
			{Endpoint: "tcp://h:1", Replay: "tcp://h:11", Topic: "kv"},
			{Endpoint: "tcp://h:2", Replay: "tcp://h:12", Topic: "kv", Rank: 1},
		}},
		{"list without ranks", ` [{"endpoint":"tcp://h:1"},{"endpoint":"tcp://h:2"}]`, []Source{
			{Endpoint: "tcp://h:1"}, {Endpoint: "tcp://h:2", Rank: 1},
		}},
		{"wrapped", `{"sources":[{"data_parallel_rank":0,"endpoint":"tcp://10.0.0.1:5557"}],"more":1}`, []Source{zero}},
		{"wrapped, none", `{"sources":null}`, nil},
		{"by rank", `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.0.0.1:5557",
			"replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""}}`, []Source{zero}},
		{"by rank, many", `{"10":{"endpoint":"tcp://h:10"},"2":{"endpoint":"tcp://h:2","data_parallel_rank":null},
			"1":{"endpoint":"tcp://h:3","data_parallel_rank":3}}`, []Source{
			{Endpoint: "tcp://h:2", Rank: 2}, {Endpoint: "tcp://h:3", Rank: 3}, {Endpoint: "tcp://h:10", Rank: 10},
		}},
		{"what publishes nothing", `[{"endpoint":""},null,{"endpoint":"tcp://h:1","enable_kv_cache_events":false},
			{"endpoint":"tcp://h:1","publisher":"null"}]`, nil},
		{"empty list", `[]`, nil},
		{"empty object", `{}`, nil},
		{"null", `null`, nil},
	} {
		got, err := ParseSources([]byte(tt.body))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
	for _, bad := range []string{
		``, `x`, `[`, `[1]`, `"a"`, `5`, `[{"endpoint":5}]`, `{"detail":"Not Found"}`, `{"sources":3}`, `{"sources":[3]}`,
		`{"0":3}`,
		`[{"endpoint":"tcp://h:1","data_parallel_rank":-1}]`, `[{"endpoint":"tcp://h:1","data_parallel_rank":65536}]`,
		`[{"endpoint":"` + strings.Repeat("x", maxName+1) + `"}]`,
		`[{"endpoint":"a","topic":"` + strings.Repeat("x", maxName+1) + `"}]`,
		`[` + strings.Repeat(`{},`, maxSources) + `{}]`, `{"sources":[` + strings.Repeat(`{},`, maxSources) + `{}]}`,
		"{" + strings.Join(numbered(maxSources+1), ",") + "}", `[{}]` + strings.Repeat(" ", maxInfo),
	} {
		if got, err := ParseSources([]byte(bad)); err == nil {
			t.Errorf("%.60q passed as %v", bad, got)
		}
	}
}

func numbered(n int) (fields []string) {
	for i := range n {
		fields = append(fields, fmt.Sprintf(`"%d":{}`, i))
	}
	return fields
}

func TestParseServerInfo(t *testing.T) {
	events := func(fields string) string { return `{"model_path":"m","kv_events":{"publisher":"zmq",` + fields + `}}` }
	for _, tt := range []struct {
		name, body string
		want       []Source
	}{
		{
			"one rank", events(`"endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":16,"dp_size":1`),
			[]Source{{Endpoint: "tcp://*:5557", Topic: "kv"}},
		},
		{
			"two ranks", events(`"endpoint_host":"10.0.0.1","endpoint_port_base":5557,"topic":"","block_size":1,"dp_size":2,
			"load_topic":"load","load_endpoint_port_base":5559`),
			[]Source{{Endpoint: "tcp://10.0.0.1:5557"}, {Endpoint: "tcp://10.0.0.1:5558", Rank: 1}},
		},
		{"replay, of which no release tells yet", events(`"endpoint_host":"h","endpoint_port_base":1,"dp_size":2,
			"replay_endpoint":"tcp://h:11"`), []Source{
			{Endpoint: "tcp://h:1", Replay: "tcp://h:11"}, {Endpoint: "tcp://h:2", Replay: "tcp://h:12", Rank: 1},
		}},
		{"no size", events(`"endpoint_host":"::","endpoint_port_base":5557`), []Source{{Endpoint: "tcp://[::]:5557"}}},
		{"brackets", events(`"endpoint_host":"[::1]","endpoint_port_base":5557`), []Source{{Endpoint: "tcp://[::1]:5557"}}},
		{"no host", events(`"endpoint_port_base":5557`), []Source{{Endpoint: "tcp://:5557"}}},
		{"off", `{"kv_events":null}`, nil},
		{"an old release", `{"model_path":"m"}`, nil},
		{"another publisher", `{"kv_events":{"publisher":"null","endpoint_port_base":5557}}`, nil},
	} {
		got, err := ParseServerInfo([]byte(tt.body))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
	for _, bad := range []string{
		``, `[]`, `{"kv_events":5}`, events(`"endpoint_host":"*"`), events(`"endpoint_host":"*","endpoint_port_base":65536`),
		events(`"endpoint_host":"*","endpoint_port_base":65535,"dp_size":2`),
		events(`"endpoint_host":"*","endpoint_port_base":-1`),
		events(`"endpoint_host":"*","endpoint_port_base":5557,"dp_size":65`),
		events(`"endpoint_host":"h/x","endpoint_port_base":5557`),
		events(`"endpoint_host":"h","endpoint_port_base":5557,"replay_endpoint":"h:1"`),
		events(`"endpoint_host":"h","endpoint_port_base":5557,"topic":"` + strings.Repeat("x", maxName+1) + `"`),
		`{}` + strings.Repeat(" ", maxInfo),
	} {
		if got, err := ParseServerInfo([]byte(bad)); err == nil {
			t.Errorf("%.90q passed as %v", bad, got)
		}
	}
}

func TestExpand(t *testing.T) {
	for _, tt := range []struct {
		endpoint, replay string
		ranks            int
		want             []Source
	}{
		{"tcp://*:5557", "", 1, []Source{{Endpoint: "tcp://*:5557"}}},
		{"tcp://h:5557", "tcp://h:6557", 3, []Source{
			{Endpoint: "tcp://h:5557", Replay: "tcp://h:6557"},
			{Endpoint: "tcp://h:5558", Replay: "tcp://h:6558", Rank: 1},
			{Endpoint: "tcp://h:5559", Replay: "tcp://h:6559", Rank: 2},
		}},
		{"tcp://[fd00::1]:9", "", 2, []Source{{Endpoint: "tcp://[fd00::1]:9"}, {Endpoint: "tcp://[fd00::1]:10", Rank: 1}}},
		{"tcp://:::5557", "", 2, []Source{{Endpoint: "tcp://[::]:5557"}, {Endpoint: "tcp://[::]:5558", Rank: 1}}},
		{"tcp://[fe80::1%eth0]:9", "", 1, []Source{{Endpoint: "tcp://[fe80::1%eth0]:9"}}},
		{"ipc:///tmp/kv", "ipc:///tmp/replay", 1, []Source{{Endpoint: "ipc:///tmp/kv", Replay: "ipc:///tmp/replay"}}},
	} {
		got, err := Expand(tt.endpoint, tt.replay, tt.ranks)
		if err != nil {
			t.Errorf("%s: %v", tt.endpoint, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.endpoint, diff)
		}
	}
	for _, bad := range []struct {
		endpoint, replay string
		ranks            int
	}{
		{"tcp://h:1", "", 0},
		{"tcp://h:1", "", -1},
		{"tcp://h:1", "", maxSources + 1},
		{"tcp://h:65535", "", 2},
		{"tcp://h:1", "tcp://h:65535", 2},
		{"ipc:///tmp/kv", "", 2},
		{"ipc://", "", 1},
		{"", "", 1},
		{"h:5557", "", 1},
		{"inproc://x", "", 1},
		{"tcp://h", "", 1},
		{"tcp://h:", "", 1},
		{"tcp://h:0", "", 1},
		{"tcp://h:-1", "", 1},
		{"tcp://h:+1", "", 1},
		{"tcp://h:65536", "", 1},
		{"tcp://h:x", "", 1},
		{"tcp://a:b:1", "", 1},
		{"tcp://[h]x:1", "", 1},
		{"tcp://u@h:1", "", 1},
		{"tcp://h/x:1", "", 1},
		{"tcp://h:1", "x", 1},
		{"tcp://" + strings.Repeat("h", maxName) + ":1", "", 1},
	} {
		if got, err := Expand(bad.endpoint, bad.replay, bad.ranks); err == nil {
			t.Errorf("%.60q, %q, %d ranks passed as %v", bad.endpoint, bad.replay, bad.ranks, got)
		}
	}
}

func TestResolve(t *testing.T) {
	const refused = "refused"
	for _, tt := range []struct{ endpoint, host, want string }{
		{"tcp://*:5557", "engine-0", "tcp://engine-0:5557"},
		{"tcp://:5557", "engine-0", "tcp://engine-0:5557"},
		{"tcp://0.0.0.0:5557", "10.0.0.1", "tcp://10.0.0.1:5557"},
		{"tcp://[::]:5557", "10.0.0.1", "tcp://10.0.0.1:5557"},
		{"tcp://:::5557", "fd00::1", "tcp://[fd00::1]:5557"},
		{"tcp://*:5557", "[fd00::1]", "tcp://[fd00::1]:5557"},
		{"tcp://10.0.0.1:5557", "10.0.0.1", "tcp://10.0.0.1:5557"},
		{"tcp://[fd00:0:0::1]:5557", "fd00::1", "tcp://[fd00::1]:5557"},
		{"tcp://[::ffff:10.0.0.1]:5557", "10.0.0.1", "tcp://10.0.0.1:5557"},
		{"tcp://Engine-0.:5557", "engine-0", "tcp://engine-0:5557"},
		{"tcp://127.0.0.1:5557", "localhost", "tcp://localhost:5557"},
		{"tcp://localhost:5557", "127.0.0.1", "tcp://127.0.0.1:5557"},
		{"tcp://[::1]:5557", "127.0.0.1", "tcp://127.0.0.1:5557"},
		{"tcp://127.0.0.2:5557", "", "tcp://:5557"},
		{"ipc:///tmp/kv", "localhost", "ipc:///tmp/kv"},

		{"tcp://10.0.0.2:5557", "10.0.0.1", refused},
		{"tcp://10.0.0.1:5557", "engine-0", refused},
		{"tcp://engine-0:5557", "engine-1", refused},
		{"tcp://127.0.0.1:5557", "10.0.0.1", refused},
		{"tcp://localhost:5557", "engine-0", refused},
		{"tcp://metadata.internal:80", "localhost", refused},
		{"ipc:///tmp/kv", "10.0.0.1", refused},
		{"udp://*:5557", "engine-0", refused},
		{"tcp://*:0", "engine-0", refused},
	} {
		want := Source{Endpoint: tt.want, Replay: tt.want, Topic: "kv", Rank: 3}
		got, err := Source{Endpoint: tt.endpoint, Replay: tt.endpoint, Topic: "kv", Rank: 3}.Resolve(tt.host)
		switch {
		case tt.want == refused:
			if err == nil {
				t.Errorf("%s at %s passed as %v", tt.endpoint, tt.host, got)
			}
			if _, err := (Source{Endpoint: "tcp://*:1", Replay: tt.endpoint}).Resolve(tt.host); err == nil {
				t.Errorf("%s at %s passed as a replay socket", tt.endpoint, tt.host)
			}
		case err != nil || got != want:
			t.Errorf("%s at %s: got %v, %v, want %v", tt.endpoint, tt.host, got, err, want)
		}
	}
	if got, err := (Source{Endpoint: "tcp://*:1"}).Resolve("h"); err != nil || got != (Source{Endpoint: "tcp://h:1"}) {
		t.Errorf("without a replay socket: %v, %v", got, err)
	}
}

// resolvedOn fails the test unless all that the sources may make us dial is at host.
func resolvedOn(t *testing.T, sources []Source, host string) {
	t.Helper()
	for _, s := range sources {
		s, err := s.Resolve(host)
		if err != nil {
			continue
		}
		for _, endpoint := range []string{s.Endpoint, s.Replay} {
			network, at, err := zmtp.Endpoint(endpoint)
			if endpoint == "" && endpoint == s.Replay {
				continue
			}
			if got, _, _ := net.SplitHostPort(at); err != nil || network != "tcp" || got != host {
				t.Fatalf("%q is at %s %q, %v", endpoint, network, at, err)
			}
		}
	}
}

func FuzzParseSources(f *testing.F) {
	f.Add([]byte(`[{"data_parallel_rank":1,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://10.0.0.1:5558","topic":"kv"}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		sources, err := ParseSources(body)
		if err != nil {
			return
		}
		for i, s := range sources {
			if s.Endpoint == "" || s.Rank < 0 || i > 0 && s.Rank < sources[i-1].Rank {
				t.Fatalf("odd source %v", s)
			}
		}
		resolvedOn(t, sources, "10.0.0.1")
	})
}

func FuzzParseServerInfo(f *testing.F) {
	f.Add([]byte(`{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","dp_size":2}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		sources, err := ParseServerInfo(body)
		if err != nil {
			return
		}
		for rank, s := range sources {
			if s.Rank != rank {
				t.Fatalf("odd source %v", s)
			}
		}
		resolvedOn(t, sources, "10.0.0.1")
	})
}

func FuzzExpand(f *testing.F) {
	f.Add("tcp://*:5557", "tcp://[::1]:6557", 2)
	f.Add("ipc:///tmp/kv", "", 1)
	f.Fuzz(func(t *testing.T, endpoint, replay string, ranks int) {
		sources, err := Expand(endpoint, replay, ranks)
		if err != nil {
			return
		}
		if len(sources) != ranks || strings.Contains(endpoint, "ipc:") && ranks > 1 {
			t.Fatalf("%d sources for %d ranks of %q", len(sources), ranks, endpoint)
		}
		for _, s := range sources {
			if _, _, err := zmtp.Endpoint(s.Endpoint); err != nil {
				t.Fatalf("%q became %q: %v", endpoint, s.Endpoint, err)
			}
		}
		resolvedOn(t, sources, "10.0.0.1")
	})
}
