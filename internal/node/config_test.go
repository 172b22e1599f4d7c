package node

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/spread"
)

func TestEveryViolationNamesItsField(t *testing.T) {
	engine := func(change func(*EngineConfig)) func(*Config) {
		return func(c *Config) {
			e := EngineConfig{Name: "e", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:8000"}}
			change(&e)
			c.Engines = append(c.Engines, e)
		}
	}
	tests := []struct {
		name   string
		change func(*Config)
		want   string // at the start of a line; "" for none
	}{
		{"nothing", func(*Config) {}, ""},
		{"an engine", engine(func(*EngineConfig) {}), ""},
		{"no debug server", func(c *Config) { c.Debug = "" }, ""},
		{"debug server on loopback v6", func(c *Config) { c.Debug = "[::1]:7083" }, ""},
		{"debug server elsewhere with token", func(c *Config) { c.Debug, c.DebugToken = ":7083", "t" }, ""},
		{"debug server elsewhere", func(c *Config) { c.Debug = ":7083" }, "Debug "},
		{"debug without port", func(c *Config) { c.Debug = "127.0.0.1" }, "Debug "},
		{"http without port", func(c *Config) { c.HTTP = "localhost" }, "HTTP "},
		{"no http", func(c *Config) { c.HTTP = "" }, "HTTP "},
		{"drain timeout below zero", func(c *Config) { c.DrainTimeout = -1 }, "DrainTimeout "},
		{"mesh id", func(c *Config) { c.Mesh.MeshID = "A mesh" }, "MeshID "},
		{"name", func(c *Config) { c.Mesh.Name = "a/b" }, "Name "},
		{"certificate of another", func(c *Config) { c.Mesh.Name = "other" }, "Identity: "},
		{"seed without port", func(c *Config) { c.Mesh.Join = []string{"seed"} }, "Join "},
		{"no gossip key", func(c *Config) { c.Mesh.GossipKeys = nil }, "GossipKeys "},
		{"body limit", func(c *Config) { c.Forward.MaxBody = 0 }, "MaxBody "},
		{"body budget", func(c *Config) { c.Forward.BodyBudget = 1 }, "BodyBudget "},
		{"queue limit", func(c *Config) { c.Forward.QueueLimit = -1 }, "QueueLimit "},
		{"queue bytes", func(c *Config) { c.Forward.QueueBytes = -1 }, "QueueBytes "},
		{"queue timeout", func(c *Config) { c.Forward.QueueTimeout = 0 }, "QueueTimeout "},
		{"timeout", func(c *Config) { c.Forward.Timeout = 0 }, "Timeout "},
		{"engine without name", engine(func(e *EngineConfig) { e.Name = "" }), `Engine "":`},
		{"engine with a long name", engine(func(e *EngineConfig) { e.Name = strings.Repeat("e", 65) }), `Engine "eee`},
		{"engine with a slash", engine(func(e *EngineConfig) { e.Name = "a/b" }), `Engine "a/b":`},
		{"engine without URL", engine(func(e *EngineConfig) { e.URL = nil }), `Engine "e":`},
		{"engine by another scheme", engine(func(e *EngineConfig) { e.URL.Scheme = "ftp" }), `Engine "e":`},
		{"engine without host", engine(func(e *EngineConfig) { e.URL.Host = "" }), `Engine "e":`},
		{"a rank", engine(func(e *EngineConfig) { e.Rank, e.Kind = new(7), "sglang" }), ""},
		{"a rank below zero", engine(func(e *EngineConfig) { e.Rank = new(-1) }), `Engine "e": its rank`},
		{"a rank that nothing can address", engine(func(e *EngineConfig) { e.Rank, e.Kind = new(0), "trtllm" }), `Engine "e": a rank`},
		{"engine with capacity below zero", engine(func(e *EngineConfig) { e.CapacityTokens = -1 }), `Engine "e":`},
		{"engine with running below zero", engine(func(e *EngineConfig) { e.MaxRunning = -1 }), `Engine "e":`},
		{"two engines of one name", func(c *Config) {
			engine(func(*EngineConfig) {})(c)
			engine(func(*EngineConfig) {})(c)
		}, `Engine "e": is there twice`},
		{"too many engines", func(c *Config) { c.Engines = make([]EngineConfig, spread.MaxEngines+1) }, "Engines "},
	}
	r := newRig(t)
	all := r.config("a")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := r.config("a")
			tt.change(&c)
			err := c.Validate()
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains("\n"+err.Error(), "\n"+tt.want) {
				t.Errorf("Validate = %q, want a line that begins with %q", err, tt.want)
			}
			if _, err := New(c); err == nil {
				t.Error("New took what Validate refuses")
			}
		})
	}
	all.HTTP, all.Debug, all.DrainTimeout, all.Mesh.MeshID = "x", "y", -time.Second, ""
	all.Forward.MaxBody, all.Engines = -1, []EngineConfig{{Name: "e"}}
	err := all.Validate()
	for _, want := range []string{"HTTP ", "Debug ", "DrainTimeout ", "MeshID ", "MaxBody ", `Engine "e":`} {
		if err == nil || !strings.Contains("\n"+err.Error(), "\n"+want) {
			t.Errorf("of many violations %q is missing: %v", want, err)
		}
	}
}
