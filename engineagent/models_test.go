package engineagent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
)

const vllmModels = `{"object":"list","data":[
 {"id":"qwen","object":"model","owned_by":"vllm","root":"Qwen/Qwen3-32B","parent":null,"max_model_len":40960},
 {"id":"default","object":"model","owned_by":"vllm","root":"Qwen/Qwen3-32B","parent":null,"max_model_len":40960},
 {"id":"sql","object":"model","owned_by":"vllm","root":"/adapters/sql","parent":"qwen"},
 {"id":"sql2","object":"model","owned_by":"vllm","root":"/adapters/sql","parent":"qwen"}]}`

func TestModelsAreGroupedByRoot(t *testing.T) {
	tests := []struct {
		name, body string
		want       []engine.Model
	}{
		{"first id is canonical, adapters stand alone", vllmModels, []engine.Model{
			{Name: "qwen", Aliases: []string{"default"}, MaxContext: 40960}, {Name: "sql"}, {Name: "sql2"},
		}},
		{"ids only", `{"data":[{"id":"a"},{"id":"b"},{"id":""}]}`, []engine.Model{{Name: "a"}, {Name: "b"}}},
		{
			"context out of range", `{"data":[{"id":"a","max_model_len":-5},{"id":"b","max_model_len":1e30}]}`,
			[]engine.Model{{Name: "a"}, {Name: "b", MaxContext: 1 << 30}},
		},
		{"none", `{"data":null}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cards, err := parseModels([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, modelsOf(cards)); diff != "" {
				t.Errorf("models differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServerInfoOfAnotherProgramIsNotSGLang(t *testing.T) {
	if _, ok := parseServerInfo([]byte(`{"disaggregated_params":{}}`)); ok {
		t.Error("taken for SGLang")
	}
	got, ok := parseServerInfo([]byte(`{"page_size":16,"schedule_policy":"fcfs","max_running_requests":48,` +
		`"max_total_num_tokens":400000,"enable_cache_report":true,"kv_events":null}`))
	want := serverInfo{MaxRunning: 48, MaxTokens: 400000, PageSize: 16, CacheReport: true, SchedulePolicy: "fcfs"}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("ok %v, differs (-want +got):\n%s", ok, diff)
	}
	got, ok = parseServerInfo([]byte(`{"max_running_requests":"auto","page_size":64,"enable_metrics":true,"version":"0.5.20"}`))
	want = serverInfo{PageSize: 64, Metrics: true, Version: "0.5.20"}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("a field of another type: ok %v, differs (-want +got):\n%s", ok, diff)
	}
}

func TestLoadsOfRanksAddUp(t *testing.T) {
	got, err := parseLoads([]byte(`{"loads":[
 {"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":1,
  "max_total_num_tokens":1000,"max_running_requests":8,"token_usage":0.5},
 {"dp_rank":1,"num_running_reqs":2,"num_waiting_reqs":-4,
  "max_total_num_tokens":1000,"max_running_requests":8,"token_usage":9}]}`), "")
	want := reading{ranks: 2, running: 5, waiting: 1, kvUsage: 0.75, capacityTokens: 2000, maxRunning: 16}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(reading{})); diff != "" || err != nil {
		t.Errorf("error %v, differs (-want +got):\n%s", err, diff)
	}
	const twoRanks = `{"loads":[{"num_running_reqs":3},{"dp_rank":1,"num_running_reqs":2}]}`
	if got, err = parseLoads([]byte(twoRanks), "1"); err != nil || got.running != 2 {
		t.Errorf("rank 1 runs %d, error %v", got.running, err)
	}
	for _, bad := range []string{`{"loads":[]}`, `{"loads":"none"}`, `[]`, ``} {
		if _, err := parseLoads([]byte(bad), ""); err == nil {
			t.Errorf("%q is not an error", bad)
		}
	}
}

func TestLoadsTellWhatWaits(t *testing.T) {
	got, err := parseLoads([]byte(`{"timestamp":"2026-08-01T00:00:00Z","version":"0.5.20","loads":[
 {"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":2,"num_waiting_uncached_tokens":9000,"max_running_requests":null},
 {"dp_rank":1,"num_waiting_reqs":1,"num_waiting_uncached_tokens":500}]}`), "")
	want := reading{ranks: 2, running: 1, waiting: 3, waitingTokens: 9500}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(reading{})); diff != "" || err != nil {
		t.Errorf("error %v, differs (-want +got):\n%s", err, diff)
	}
}

func FuzzParseModels(f *testing.F) {
	f.Add([]byte(vllmModels))
	f.Add([]byte(`{"data":[{"id":"a","max_model_len":1e308}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		cards, err := parseModels(b)
		if err != nil {
			return
		}
		e := engine.Engine{ID: "a/e", Models: modelsOf(cards)}
		if _, _, err := engine.ParseEngine(engine.AppendEngine(nil, &e), "a"); err != nil {
			t.Errorf("models that cannot be announced: %v", err)
		}
	})
}

func FuzzParseInfo(f *testing.F) {
	f.Add([]byte(`{"page_size":16,"max_running_requests":null,"loads":[{"token_usage":0.5}]}`))
	f.Add([]byte(`{"version":"0.25.1"}`))
	f.Add([]byte(`[{"id":0,"is_processing":true,"n_ctx":8192},{"state":1,"n_ctx":-1}]`))
	f.Add([]byte(iterations))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseServerInfo(b)
		hasVersion(b)
		for name, parse := range map[string]func([]byte) (reading, error){
			"loads": func(b []byte) (reading, error) { return parseLoads(b, "") }, "slots": parseSlots, "iterations": parseIterations,
		} {
			if r, err := parse(b); err == nil && outOfRange(&r) {
				t.Errorf("%s out of range: %+v", name, r)
			}
		}
	})
}
