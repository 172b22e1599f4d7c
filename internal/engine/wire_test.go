package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func exampleEngine() Engine {
	return Engine{
		ID: "agent/gpu0", Kind: KindVLLM, Generation: 1 << 50, BlockTokens: 16, CapacityTokens: 2_048_000, MaxRunning: 128,
		Residency: ResidencyEvents, Evidence: EvidenceUsage, Scale: 0.8125, Unstable: true, Zone: "rack é 7",
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
	if n := len(AppendLoad(AppendString(nil, "engine0"), l)); n > 64 {
		t.Errorf("an engine takes %d bytes, want at most 64", n)
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

func TestBytesThatStandForWordsAndShares(t *testing.T) {
	const first = 1 + 2 + 1 + 4 // length, name, kind, and four numbers of a byte each
	for name, tt := range map[string]struct {
		at   int
		v    byte
		want Engine
		ok   bool
	}{
		"residency":               {first, byte(ResidencyEvents), Engine{Residency: ResidencyEvents}, true},
		"a later one's residency": {first, byte(numResidencies), Engine{Residency: ResidencyMirror}, true},
		"evidence":                {first + 1, byte(EvidenceUsage), Engine{Evidence: EvidenceUsage}, true},
		"a later one's evidence":  {first + 1, 255, Engine{Evidence: EvidenceNone}, true},
		"whole scale":             {first + 2, scaleSteps, Engine{Scale: 1}, true},
		"scale above one":         {first + 2, scaleSteps + 1, Engine{}, false},
		"unstable":                {first + 3, 1, Engine{Unstable: true}, true},
		"unstable otherwise":      {first + 3, 2, Engine{Unstable: true}, true},
	} {
		b := AppendEngine(nil, &Engine{ID: "agent/e"})
		b[tt.at] = tt.v
		if tt.ok {
			tt.want.ID = "agent/e"
		}
		got, _, err := ParseEngine(b, "agent")
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != tt.ok {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

func TestZoneIsAShortName(t *testing.T) {
	for zone, ok := range map[string]bool{
		"": true, "eu-west-1a": true, strings.Repeat("z", MaxZone): true, strings.Repeat("z", MaxZone+1): false, "a\nb": false, "\xff": false,
	} {
		e := exampleEngine()
		e.Zone = zone
		got, _, err := ParseEngine(AppendEngine(nil, &e), "agent")
		if (err == nil) != ok || (CheckZone(zone) == nil) != ok || ok && got.Zone != zone {
			t.Errorf("%q: got %q, %v, check %v", zone, got.Zone, err, CheckZone(zone))
		}
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
	full := AppendEngine(nil, &e)
	for n := range full {
		if _, _, err := ParseEngine(full[:n], "agent"); !errors.Is(err, ErrTruncated) {
			t.Errorf("engine of %d of %d bytes: %v", n, len(full), err)
		}
	}
	full = AppendLoad(nil, Load{Seq: 1 << 40, InFlight: 300})
	for n := range full {
		if _, _, err := ParseLoad(full[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("load of %d of %d bytes: %v", n, len(full), err)
		}
	}
}

// withLength returns the element whose fields are body.
func withLength(body []byte) []byte {
	return AppendElement(nil, func(b []byte) []byte { return append(b, body...) })
}

// fieldsOf returns the fields of an element.
func fieldsOf(element []byte) []byte { return NewReader(element).Element().Rest() }

func TestFieldsOfALaterVersionAreSkipped(t *testing.T) {
	for _, later := range []string{"x", strings.Repeat("long ", 100)} {
		load := Load{Seq: 7, InFlight: 3, RequestCost: 0.05}
		l, rest, err := ParseLoad(append(withLength(append(fieldsOf(AppendLoad(nil, load)), later...)), "rest"...))
		if err != nil || l != load || string(rest) != "rest" {
			t.Errorf("load: %+v, rest %q, %v", l, rest, err)
		}
		want := exampleEngine()
		want.Models = []Model{{Name: "m"}}
		plain := AppendEngine(nil, &want)
		e, rest, err := ParseEngine(append(withLength(append(fieldsOf(plain), later...)), "rest"...), "agent")
		if diff := cmp.Diff(want, e); err != nil || diff != "" || string(rest) != "rest" {
			t.Errorf("engine: %v, rest %q, (-want +got):\n%s", err, rest, diff)
		}
		model := appendModel(nil, &want.Models[0])
		longer := bytes.Replace(fieldsOf(plain), model, withLength(append(fieldsOf(model), later...)), 1)
		e, _, err = ParseEngine(withLength(longer), "agent")
		if diff := cmp.Diff(want, e); err != nil || diff != "" {
			t.Errorf("model: %v (-want +got):\n%s", err, diff)
		}
	}
}

func TestWhatAnEarlierVersionDoesNotTellIsZero(t *testing.T) {
	known := Load{Seq: 7, Flags: Full, QueuedSeconds: 1.5, InFlight: 3, Waiting: 2, KVUsage: 0.5}
	whole := known
	whole.PrefillRate, whole.BytesPerToken, whole.AcceptRate, whole.BusyShare = 9000, 4, 1, 0.5
	whole.PrefillFixed, whole.PrefillBend, whole.RequestCost = 0.01, 1e-9, 0.05
	fields := fieldsOf(AppendLoad(nil, whole))
	const needed = 1 + 1 + 3 + 1 + 1 + 2
	if l, rest, err := ParseLoad(append(withLength(fields[:needed]), "rest"...)); err != nil || l != known || string(rest) != "rest" {
		t.Errorf("load: %+v, rest %q, %v; want %+v", l, rest, err, known)
	}
	want := exampleEngine()
	fields = fieldsOf(AppendEngine(nil, &want))
	fields = fields[:len(fields)-1-len(want.Zone)]
	want.Zone = ""
	e, rest, err := ParseEngine(append(withLength(fields), "rest"...), "agent")
	if diff := cmp.Diff(want, e); err != nil || diff != "" || string(rest) != "rest" {
		t.Errorf("engine without zone: %v, rest %q, (-want +got):\n%s", err, rest, diff)
	}
}

func TestLoadThatEndsEarlyIsRefused(t *testing.T) {
	fields := fieldsOf(AppendLoad(nil, Load{Seq: 7, KVUsage: 0.5, PrefillRate: 9000}))
	const needed = 1 + 1 + 1 + 1 + 1 + 2
	if l, _, err := ParseLoad(withLength(fields[:needed-2])); !errors.Is(err, ErrTruncated) {
		t.Errorf("load without KV usage: %+v, %v", l, err)
	}
	if l, _, err := ParseLoad(withLength(fields[:needed+1])); !errors.Is(err, ErrTruncated) {
		t.Errorf("load cut inside its rate: %+v, %v", l, err)
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
