package simengine

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"
)

// twoTiers has room for 10 blocks on the GPU and as many on the host.
func twoTiers(c *Config) { c.BlockTokens, c.CapacityTokens, c.OffloadTokens = 4, 40, 40 }

func TestEvictedBlocksAreLoadedBack(t *testing.T) {
	for _, k := range []string{KindVLLM, KindSGLang} {
		inBubble(t, func(c *Config) { twoTiers(c); c.Kind = k }, func(t *testing.T, r *rig) {
			old := tinyRequest(1, 33, 1)
			r.ok("/v1/completions", old)
			r.ok("/v1/completions", tinyRequest(100, 33, 1)) // takes the blocks of old but one
			if got := r.resident(old); got != (Residency{33, 32, 32, 28}) {
				t.Errorf("%s: %+v, want all resident and 28 tokens to load", k, got)
			}
			start := time.Now()
			got := r.ok("/v1/completions", old)
			if n := at(got, "usage", "prompt_tokens_details", "cached_tokens"); n != 32.0 {
				t.Errorf("%s: %v tokens cached, want those of the host counted", k, n)
			}
			want := prefillTime(16000, 33, 1, 0) + loadTime(16000, 28)
			if d := time.Since(start); d != want {
				t.Errorf("%s: took %v, want %v", k, d, want)
			}
			s := r.Stats()
			if s.LoadedTokens != 28 || s.CachedTokens != 32 || s.HitTokens != 4 || s.HostBlocks != 10 {
				t.Errorf("%s: stats %+v", k, s)
			}
		})
	}
}

// tierEvents renders every event of every batch.
func tierEvents(t *testing.T, replay *memNet) []string {
	t.Helper()
	dealer := follow(t, replay, "DEALER")
	dealer.send(nil, seqFrame(0))
	var out []string
	for {
		m := dealer.next()
		if len(m[len(m)-1]) == 0 {
			return out
		}
		v, _, err := msgp.ReadIntfBytes(m[len(m)-1])
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range v.([]any)[1].([]any) {
			out = append(out, jsonOf(e))
		}
	}
}

func TestTierEvents(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		stored string // what tells that a block is on the host
		gone   string // and that it is there no more
	}{
		"vllm map": {
			func(*Config) {},
			`{"block_hashes":[H],"block_size":0,"group_idx":0,"lora_id":null,"lora_name":null,"medium":"CPU",` +
				`"parent_block_hash":null,"token_ids":[],"type":"BlockStored"}`,
			`{"block_hashes":[H],"group_idx":0,"medium":"CPU","type":"BlockRemoved"}`,
		},
		"vllm array": {
			func(c *Config) { c.KVEvents.Encoding = EncodingArray },
			`["BlockStored",[H],null,[],0,null,"CPU",null,null,0,null,null]`,
			`["BlockRemoved",[H],"CPU",0]`,
		},
		"sglang map": {
			func(c *Config) { c.Kind = KindSGLang },
			`{"block_hashes":[H],"block_size":4,"cache_salt":"s","lora_id":null,"medium":"CPU_PINNED","parent_block_hash":P,` +
				`"token_ids":[5,6,7,8],"type":"BlockStored"}`,
			`{"block_hashes":[H],"medium":"CPU_PINNED","type":"BlockRemoved"}`,
		},
		"sglang array": {
			func(c *Config) { c.Kind, c.KVEvents.Encoding = KindSGLang, EncodingArray },
			`["BlockStored",[H],P,[5,6,7,8],4,null,"CPU_PINNED",{"cache_salt":"s"}]`,
			`["BlockRemoved",[H],"CPU_PINNED"]`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, replay := eventRig(t, func(c *Config) { twoTiers(c); tt.change(c) })
				r.ok("/v1/completions", strings.Replace(tinyRequest(1, 9, 1), "{", `{"cache_salt":"s",`, 1))
				r.ok("/v1/completions", tinyRequest(100, 39, 1)) // takes all 10 blocks
				r.ok("/v1/completions", tinyRequest(200, 39, 1)) // and fills the host
				seq := r.sequence(r.life.Load(), &params{Model: "sim-model", CacheSalt: new("s")}, []Token{1, 2, 3, 4, 5, 6, 7, 8})
				h := r.wireHash(seq.chain[1])
				fill := strings.NewReplacer("[H]", "["+h+"]", "P,", r.wireHash(seq.chain[0])+",")
				got := tierEvents(t, replay)
				i := placeOf(t, got, fill.Replace(tt.stored))
				if next := got[i+1]; !strings.Contains(next, "BlockRemoved") || !strings.Contains(next, h) || !strings.Contains(next, `"GPU"`) {
					t.Errorf("after the copy comes %s, want its removal from the GPU", next)
				}
				if gone := placeOf(t, got, fill.Replace(tt.gone)); gone < i {
					t.Errorf("removed from the host at %d, stored at %d", gone, i)
				}
			})
		})
	}
}

// wireHash is a block's hash as the events of the kind show it.
func (r *rig) wireHash(l link) string {
	if r.cfg.Kind == KindSGLang {
		return fmt.Sprint(int64(l.wire))
	}
	return fmt.Sprint(l.wire)
}

// placeOf is the place of want in events.
func placeOf(t *testing.T, events []string, want string) int {
	t.Helper()
	for i, e := range events {
		if e == want {
			return i
		}
	}
	t.Fatalf("no event %s in\n%s", want, strings.Join(events, "\n"))
	return 0
}

func TestClearingTheCacheAndTheHost(t *testing.T) {
	tests := []struct {
		kind, path string
		left       int // tokens of the first prompt that can still be loaded
	}{
		{KindVLLM, "/reset_prefix_cache", 28},
		{KindVLLM, "/reset_prefix_cache?reset_external=true", 0},
		{KindSGLang, "/flush_cache", 0},
		{KindVLLM, "/sim/restart", 0},
	}
	for _, tt := range tests {
		inBubble(t, func(c *Config) { twoTiers(c); c.Kind = tt.kind }, func(t *testing.T, r *rig) {
			old := tinyRequest(1, 33, 1)
			r.ok("/v1/completions", old)
			r.ok("/v1/completions", tinyRequest(100, 33, 1))
			r.post(tt.path, "")
			synctest.Wait()
			// The first block stayed on the GPU, and no hit is longer than what is on the host without it.
			r.ok("/v1/completions", tinyRequest(1, 5, 1))
			if got := r.resident(old).LoadTokens; got != tt.left {
				t.Errorf("%s %s leaves %d tokens to load, want %d", tt.kind, tt.path, got, tt.left)
			}
		})
	}
}

func TestMetricsTellTheTiersApart(t *testing.T) {
	want := map[string][]string{
		KindVLLM: {
			"vllm:prefix_cache_hits_total{L} 4", "vllm:external_prefix_cache_hits_total{L} 28",
			"vllm:external_prefix_cache_queries_total{L} 95", "vllm:prompt_tokens_cached_total{L} 32",
		},
		KindSGLang: {
			`sglang:cached_tokens_total{L,cache_source="device"} 4`, `sglang:cached_tokens_total{L,cache_source="host"} 28`,
		},
	}
	labels := map[string]string{
		KindVLLM: `engine="0",model_name="sim-model"`, KindSGLang: `engine_type="unified",model_name="sim-model",pp_rank="0",tp_rank="0"`,
	}
	for k, lines := range want {
		inBubble(t, func(c *Config) { twoTiers(c); c.Kind = k }, func(t *testing.T, r *rig) {
			for _, first := range []int{1, 100, 1} {
				r.ok("/v1/completions", tinyRequest(first, 33, 1))
			}
			_, body := r.do("GET", "/metrics", "")
			for _, line := range lines {
				if line = strings.Replace(line, "L", labels[k], 1); !strings.Contains(body, "\n"+line+"\n") {
					t.Errorf("%s: no %s in\n%s", k, line, body)
				}
			}
		})
	}
}

func TestHostTierNeedsAKindThatHasOne(t *testing.T) {
	for k, want := range map[string]bool{KindVLLM: true, KindSGLang: true, KindTRTLLM: false} {
		cfg := DefaultConfig()
		cfg.Kind, cfg.OffloadTokens = k, 1000
		if err := cfg.Validate(); (err == nil) != want {
			t.Errorf("%s: %v", k, err)
		}
	}
	cfg := DefaultConfig()
	cfg.OffloadTokens = 15
	if cfg.Validate() == nil {
		t.Error("a host tier smaller than a block was let through")
	}
}

func TestLoadedBlocksAreToldAgainWithTheirTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replay := eventRig(t, twoTiers)
		old := tinyRequest(1, 17, 1)
		r.ok("/v1/completions", old)
		stored := tierEvents(t, replay)[0]
		r.ok("/v1/completions", tinyRequest(100, 39, 1))
		r.ok("/v1/completions", old)
		got := tierEvents(t, replay)
		if diff := cmp.Diff(stored, got[len(got)-1]); diff != "" {
			t.Errorf("the load is told otherwise than the computation (-computed +loaded):\n%s", diff)
		}
	})
}
