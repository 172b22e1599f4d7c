package simengine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"
)

func hybrid(c *Config) {
	c.BlockTokens = 4
	c.Groups = []Group{{Kind: GroupFull}, {Kind: GroupSliding, Window: 9}, {Kind: GroupMamba}}
}

// resident asks over HTTP.
func (r *rig) resident(body string) Residency {
	r.t.Helper()
	status, got := r.post("/sim/resident", body)
	var out Residency
	if err := json.Unmarshal([]byte(got), &out); status != http.StatusOK || err != nil {
		r.t.Fatalf("POST /sim/resident = %d %s %v", status, got, err)
	}
	return out
}

func TestResidentForetellsCachedTokens(t *testing.T) {
	layouts := map[string]func(*Config){
		"full":   func(c *Config) { c.BlockTokens = 4 },
		"hybrid": hybrid,
		"sglang": kind(KindSGLang),
		"small":  func(c *Config) { c.BlockTokens, c.CapacityTokens = 16, 4000 },
		"host":   func(c *Config) { c.BlockTokens, c.CapacityTokens, c.OffloadTokens = 16, 4000, 4000 },
	}
	bodies := []string{
		chat(300, `,"max_tokens":40`), chat(300, `,"max_tokens":40,"cache_salt":"x"`), chat(7000, `,"max_tokens":1`),
		chat(7000, `,"max_tokens":1,"prompt_logprobs":1`), chat(150, `,"max_tokens":1,"n":2`),
		`{"model":"sim-model","max_tokens":9,"prompt":"` + textOf(900) + `"}`,
		`{"model":"sim-model","max_tokens":9,"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`,
		`{"model":"sim-model","max_output_tokens":9,"input":"` + textOf(300) + `"}`,
	}
	for name, change := range layouts {
		t.Run(name, func(t *testing.T) {
			inBubble(t, change, func(t *testing.T, r *rig) {
				hits := 0
				rng := rand.New(rand.NewPCG(1, 1))
				for range 60 {
					body := bodies[rng.IntN(len(bodies))]
					path, usage := "/v1/chat/completions", []any{"usage", "prompt_tokens_details", "cached_tokens"}
					switch {
					case strings.Contains(body, `"prompt":`):
						path = "/v1/completions"
					case strings.Contains(body, `"input":`):
						path, usage[1] = "/v1/responses", "input_tokens_details"
					}
					want := r.resident(body)
					got := r.ok(path, body)
					cached, _ := at(got, usage...).(float64)
					if int(cached) != want.HitTokens {
						t.Fatalf("%s: %v tokens cached, foretold %+v", path, cached, want)
					}
					if want.HitTokens > want.ResidentTokens && !strings.Contains(body, "prompt_logprobs") {
						t.Errorf("hit %d of %d resident", want.HitTokens, want.ResidentTokens)
					}
					if want.HitTokens > 0 {
						hits++
					}
				}
				if hits == 0 {
					t.Error("nothing was ever cached")
				}
			})
		})
	}
}

func TestResidentCountsTheLastBlockThatAHitLeavesOut(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		ids := tinyRequest(1, 32, 1)
		if got := r.resident(ids); got != (Residency{PromptTokens: 32}) {
			t.Errorf("cold: %+v, want nothing", got)
		}
		r.ok("/v1/completions", ids)
		if got := r.resident(ids); got != (Residency{32, 16, 32, 0}) {
			t.Errorf("warm: %+v, want 16 to hit and 32 resident", got)
		}
		if got := r.resident(tinyRequest(1, 40, 1)); got != (Residency{40, 32, 32, 0}) {
			t.Errorf("longer: %+v, want 32", got)
		}
		if got := r.resident(strings.Replace(ids, "{", `{"prompt_logprobs":1,`, 1)); got != (Residency{32, 0, 32, 0}) {
			t.Errorf("prompt logprobs: %+v, want no hit", got)
		}
	})
}

func TestAskingForResidencyChangesNothing(t *testing.T) {
	inBubble(t, func(c *Config) { c.BlockTokens, c.CapacityTokens = 4, 40 }, func(t *testing.T, r *rig) {
		old, young := tinyRequest(1, 17, 1), tinyRequest(100, 13, 1)
		r.ok("/v1/completions", old)
		r.ok("/v1/completions", young)
		table, stats := r.Blocks(), r.Stats()
		for range 3 {
			r.resident(old)
		}
		if diff := cmp.Diff(table, r.Blocks()); diff != "" {
			t.Errorf("blocks (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(stats, r.Stats()); diff != "" {
			t.Errorf("stats (-before +after):\n%s", diff)
		}
		r.ok("/v1/completions", tinyRequest(200, 17, 1)) // needs the blocks of old, which are the oldest still
		if a, b := r.resident(old).ResidentTokens, r.resident(young).ResidentTokens; a >= 16 || b != 12 {
			t.Errorf("%d tokens of the older prompt and %d of the younger are left", a, b)
		}
	})
}

func TestResidentRefusesWhatItsRouteRefuses(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		for body, want := range map[string]int{
			`{"model":"sim-model"}`:                    400,
			`{"model":"other","prompt":"a"}`:           404,
			`{"model":"sim-model","prompt":["a","b"]}`: 400,
			`{"model":"sim-model","input":[]}`:         400,
			`{`:                                        400,
			`{"model":"sim-model","messages":[{"role":"user"}]}`: 200,
		} {
			if status, got := r.post("/sim/resident", body); status != want {
				t.Errorf("%s: %d %s, want %d", body, status, got, want)
			}
		}
	})
}

// followed is the multiset of hashes by group that a follower of all replayed events believes in; those in the host tier
// come after the three of the GPU.
func followed(t *testing.T, replay *memNet) [][]BlockHash {
	t.Helper()
	dealer := follow(t, replay, "DEALER")
	dealer.send(nil, seqFrame(0))
	out := make([][]BlockHash, 6)
	for {
		m := dealer.next()
		if len(m[len(m)-1]) == 0 {
			break
		}
		v, _, err := msgp.ReadIntfBytes(m[len(m)-1])
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range v.([]any)[1].([]any) {
			applyEvent(t, out, e.(map[string]any))
		}
	}
	for _, g := range out {
		slices.Sort(g)
	}
	return out
}

func applyEvent(t *testing.T, groups [][]BlockHash, e map[string]any) {
	t.Helper()
	g := 0
	if idx, ok := e["group_idx"]; ok {
		_, _ = fmt.Sscan(fmt.Sprint(idx), &g)
	}
	if m, ok := e["medium"].(string); ok && m != "GPU" {
		g += 3
	}
	hashes, _ := e["block_hashes"].([]any)
	for _, h := range hashes {
		var hash BlockHash
		switch h := h.(type) {
		case int64:
			hash = BlockHash(h)
		case uint64:
			hash = BlockHash(h)
		}
		if e["type"] == "BlockStored" {
			groups[g] = append(groups[g], hash)
			continue
		}
		i := slices.Index(groups[g], hash)
		if i < 0 {
			t.Fatalf("removed %d, which is not stored", hash)
		}
		groups[g] = slices.Delete(groups[g], i, i+1)
	}
	if e["type"] == "AllBlocksCleared" {
		for i := range groups {
			groups[i] = nil
		}
	}
}

func TestEventsAddUpToTheBlockTable(t *testing.T) {
	layouts := map[string]func(*Config){
		"full":   func(c *Config) { c.BlockTokens = 4 },
		"hybrid": hybrid,
		"sglang": func(c *Config) { c.Kind, c.BlockTokens = KindSGLang, 4 },

		"full with host":   func(c *Config) { c.BlockTokens, c.OffloadTokens = 4, 200 },
		"hybrid with host": func(c *Config) { hybrid(c); c.OffloadTokens = 200 },
		"sglang with host": func(c *Config) { c.Kind, c.BlockTokens, c.OffloadTokens = KindSGLang, 4, 200 },
	}
	for name, change := range layouts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, replay := eventRig(t, func(c *Config) { change(c); c.CapacityTokens = 400 })
				rng := rand.New(rand.NewPCG(3, 3))
				for i := range 80 {
					r.start("/v1/completions", tinyRequest(100*rng.IntN(4), 5+rng.IntN(90), 1+rng.IntN(40)))
					if i%3 == 0 {
						r.posts.Wait()
					}
				}
				r.posts.Wait()
				table := r.Blocks()
				if s := r.Stats(); s.Evictions == 0 || table.Resident != s.ResidentBlocks || table.Total != s.TotalBlocks {
					t.Errorf("table %d/%d, stats %+v", table.Resident, table.Total, s)
				}
				sum, got := 0, followed(t, replay)
				for i, g := range table.Groups {
					sum += g.Resident
					if diff := cmp.Diff(g.Hashes, got[i]); diff != "" {
						t.Errorf("group %d (-table +events):\n%s", i, diff)
					}
					if diff := cmp.Diff(g.HostHashes, got[i+3]); diff != "" {
						t.Errorf("group %d on the host (-table +events):\n%s", i, diff)
					}
				}
				if s := r.Stats(); strings.Contains(name, "host") && (s.LoadedTokens == 0 || s.HostBlocks == 0) {
					t.Errorf("nothing was loaded from the host: %+v", s)
				}
				if sum != table.Resident {
					t.Errorf("groups have %d blocks, the table %d", sum, table.Resident)
				}
			})
		})
	}
}

func TestSimBlocksOverHTTP(t *testing.T) {
	inBubble(t, hybrid, func(t *testing.T, r *rig) {
		r.ok("/v1/completions", tinyRequest(1, 9, 1))
		_, body := r.do("GET", "/sim/blocks", "")
		want := `{"total":1536000,"resident":5,"groups":[{"kind":"full_attention","resident":2},` +
			`{"kind":"sliding_window","resident":2},{"kind":"mamba","resident":1}]}`
		if body != want {
			t.Errorf("%s\nwant %s", body, want)
		}
		_, body = r.do("GET", "/sim/blocks?hashes=1", "")
		v := decode(t, body)
		hashes, _ := at(v, "groups", 0, "hashes").([]any)
		if len(hashes) != 2 || fmt.Sprint(hashes[0]) != fmt.Sprint(uint64(r.Blocks().Groups[0].Hashes[0])) {
			t.Errorf("hashes %v, want two decimal strings", hashes)
		}
	})
}
