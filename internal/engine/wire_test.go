package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func exampleEngine() Engine {
	return Engine{
		ID: "agent/gpu0", Kind: KindVLLM, Generation: 1 << 50, BlockTokens: 16, CapacityTokens: 2_048_000, MaxRunning: 128,
		Residency: ResidencyEvents, Evidence: EvidenceUsage, Scale: 0.8125, Unstable: true,
		Models: []Model{
			{Name: "m", Aliases: []string{"a", "b"}, MaxContext: 131072, Layout: 0xffff, HasLayout: true}, {Name: "adapter"},
		},
	}
}

func TestLoadSurvivesTheWire(t *testing.T) {
	for _, want := range []Load{
		{},
		{
			Seq: 1 << 60, QueuedSeconds: 12.345678, InFlight: 130, Waiting: 2, KVUsage: 0.987, PrefillRate: 16000,
			BytesPerToken: 4.125, AcceptRate: 2.5, BusyShare: 1, PrefillFixed: 0.012345, PrefillBend: 1.234e-9,
			RequestCost: 0.05, Flags: Down | Full,
		},
	} {
		got, rest, err := ParseLoad(append(AppendLoad(nil, want), "rest"...))
		if err != nil || got != want || string(rest) != "rest" {
			t.Errorf("got %+v, %q, %v; want %+v", got, rest, err, want)
		}
	}
}

func TestLoadOfAnEngineFitsItsShareOfAHeartbeat(t *testing.T) {
	l := Load{
		Seq: math.MaxUint64, QueuedSeconds: 600, InFlight: 4096, Waiting: 4096, KVUsage: 1, PrefillRate: 1e6, BytesPerToken: 16,
		AcceptRate: 1000, BusyShare: 1, PrefillFixed: 10, PrefillBend: 1e-4, RequestCost: 0.1, Flags: Full,
	}
	if n := len(AppendLoad(nil, l)); n > 64 {
		t.Errorf("a load takes %d bytes, want at most 64", n)
	}
}

func TestValuesThatAreNoLoadAreSentAsZero(t *testing.T) {
	l := Load{QueuedSeconds: math.NaN(), InFlight: -3, KVUsage: -1, PrefillRate: math.Inf(-1)}
	got, _, err := ParseLoad(AppendLoad(nil, l))
	if err != nil || got != (Load{}) {
		t.Errorf("got %+v, %v; want a zero load", got, err)
	}
}

func TestLoadOutOfRangeIsRefused(t *testing.T) {
	for name, l := range map[string]Load{
		"queued for days": {QueuedSeconds: 1e6}, "KV usage above one": {KVUsage: 1.001}, "busy above one": {BusyShare: 2}, "a million accepted a second": {AcceptRate: 2e6},
		"impossible rate": {PrefillRate: 1e10}, "millions in flight": {InFlight: 1 << 21}, "token of a page": {BytesPerToken: 1e5},
		"prompt of minutes": {PrefillFixed: 61}, "impossible bend": {PrefillBend: 2e-3}, "request of minutes": {RequestCost: 61},
		"more in flight than an int": {InFlight: math.MaxInt}, "millions wait": {Waiting: 1<<20 + 1},
	} {
		l.Seq = 7
		got, rest, err := ParseLoad(append(AppendLoad(nil, l), "rest"...))
		if !errors.Is(err, ErrImplausible) || got != (Load{}) || string(rest) != "rest" {
			t.Errorf("%s: got %+v, %q, %v; want no load, the rest and ErrImplausible", name, got, rest, err)
		}
	}
}

func TestEngineSurvivesTheWire(t *testing.T) {
	want := exampleEngine()
	got, rest, err := ParseEngine(append(AppendEngine(nil, &want), "rest"...), "agent")
	if diff := cmp.Diff(want, got); err != nil || diff != "" || string(rest) != "rest" {
		t.Errorf("%v, rest %q, (-want +got):\n%s", err, rest, diff)
	}
}

func TestScaleIsToldInSteps(t *testing.T) {
	for _, tt := range []struct{ scale, told, counts float64 }{
		{0, 0, 1},
		{math.NaN(), 0, 1},
		{-0.5, 0, 1},
		{0.001, 0.0625, 0.0625},
		{0.0625, 0.0625, 0.0625},
		{0.5, 0.5, 0.5},
		{0.52, 0.5, 0.5},
		{0.54, 0.5625, 0.5625},
		{0.99, 1, 1},
		{1, 1, 1},
		{7, 1, 1},
		{math.Inf(1), 1, 1},
	} {
		e := Engine{ID: "agent/e", Scale: tt.scale}
		got, _, err := ParseEngine(AppendEngine(nil, &e), "agent")
		if err != nil || got.Scale != tt.told || got.OverlapScale() != tt.counts {
			t.Errorf("scale %v: told as %v, counts as %v, %v; want %v and %v", tt.scale, got.Scale, got.OverlapScale(), err, tt.told, tt.counts)
		}
	}
}

func TestWhatIsNoResidencyOrEvidenceIsRefused(t *testing.T) {
	e := Engine{ID: "agent/e"}
	good := AppendEngine(nil, &e)
	const first = 1 + 1 + 1 + 4 // name, kind, and four numbers of a byte each
	for name, tt := range map[string]struct {
		at int
		v  byte
		ok bool
	}{
		"residency":          {first, byte(numResidencies) - 1, true},
		"another residency":  {first, byte(numResidencies), false},
		"evidence":           {first + 1, byte(numEvidences) - 1, true},
		"another evidence":   {first + 1, byte(numEvidences), false},
		"whole scale":        {first + 2, scaleSteps, true},
		"scale above one":    {first + 2, scaleSteps + 1, false},
		"unstable":           {first + 3, 1, true},
		"unstable otherwise": {first + 3, 2, true},
	} {
		b := bytes.Clone(good)
		b[tt.at] = tt.v
		got, _, err := ParseEngine(b, "agent")
		if (err == nil) != tt.ok {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		_, _ = got.Residency.String(), got.Evidence.String() // have a word for what was read
	}
}

func TestNoPeerNamesTheEnginesOfAnother(t *testing.T) {
	e := exampleEngine()
	got, _, err := ParseEngine(AppendEngine(nil, &e), "liar")
	if err != nil || got.ID != "liar/gpu0" {
		t.Errorf("got %s, %v; the owner must be the sender", got.ID, err)
	}
}

func TestEveryTruncationIsAnError(t *testing.T) {
	e := exampleEngine()
	for _, full := range [][]byte{AppendEngine(nil, &e), AppendLoad(nil, Load{Seq: 1 << 40, InFlight: 300})} {
		for n := range full {
			_, _, engineErr := ParseEngine(full[:n], "agent")
			_, _, loadErr := ParseLoad(full[:n])
			if bytes.Equal(full, AppendEngine(nil, &e)) && !errors.Is(engineErr, ErrTruncated) {
				t.Errorf("engine of %d of %d bytes: %v", n, len(full), engineErr)
			} else if n < 13 && !errors.Is(loadErr, ErrTruncated) {
				t.Errorf("load of %d bytes: no error", n)
			}
		}
	}
}

func TestReaderChecksLengthsBeforeItAllocates(t *testing.T) {
	r := NewReader(binary.AppendUvarint(nil, 1<<40))
	if b := r.Bytes(1 << 50); b != nil || !errors.Is(r.Err(), ErrTruncated) {
		t.Errorf("got %d bytes, %v", len(b), r.Err())
	}
	if r.Uvarint() != 0 || r.Byte() != 0 || r.Uint64() != 0 || r.String(9) != "" {
		t.Error("fields after a fault are not zero")
	}
}

func TestEngineAnswersToEveryNameOfItsModels(t *testing.T) {
	e := exampleEngine()
	for name, want := range map[string]string{"m": "m", "a": "m", "b": "m", "adapter": "adapter", "x": ""} {
		if m, ok := e.Serves(name); m.Name != want || ok != (want != "") {
			t.Errorf("%s: got %q, %t", name, m.Name, ok)
		}
	}
	if e.ID.Agent() != "agent" || e.ID.Name() != "gpu0" {
		t.Errorf("%s: agent %q, name %q", e.ID, e.ID.Agent(), e.ID.Name())
	}
}

func FuzzWire(f *testing.F) {
	e := exampleEngine()
	f.Add(AppendEngine(nil, &e))
	f.Add(AppendLoad(nil, Load{Seq: 9, QueuedSeconds: 1, KVUsage: 0.5, PrefillBend: 1e-9, RequestCost: 0.02}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, _, err := ParseLoad(b)
		if err != nil && l != (Load{}) {
			t.Fatalf("%+v came with %v", l, err)
		}
		if err == nil {
			if again, _, err := ParseLoad(AppendLoad(nil, l)); err != nil || again.Seq != l.Seq || again.Flags != l.Flags {
				t.Fatalf("%+v became %+v, %v", l, again, err)
			}
		}
		if e, _, err := ParseEngine(b, "agent"); err == nil {
			if again, _, err := ParseEngine(AppendEngine(nil, &e), "agent"); err != nil || cmp.Diff(e, again) != "" {
				t.Fatalf("%+v became %+v, %v", e, again, err)
			}
		}
	})
}
