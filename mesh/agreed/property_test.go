package agreed

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func drawCommand(t *rapid.T) *Command {
	kinds := []Kind{
		KindPolicy, KindRollback, KindGeometry, KindGeometrySwitch, KindGeometryFinish, KindGeometryRollback, KindScheme,
		KindSchemeFinish, KindSchemeRollback, KindCordon, KindUncordon, KindRevoke, KindAPIKeys, kindFound, kindRaise, kindEpoch,
	}
	small := rapid.IntRange(1, 4)
	at := t0.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "second")) * time.Second)
	expiry := rapid.SampledFrom([]time.Time{{}, at.Add(10 * time.Second), at.Add(-time.Second)})
	target := func() Target {
		name := fmt.Sprint("t", small.Draw(t, "target"))
		return rapid.SampledFrom([]Target{{Engine: name}, {Agent: name}, {}}).Draw(t, "kind of target")
	}
	return &Command{
		ID: fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "id")), Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
		Author: rapid.StringN(0, 8, 16).Draw(t, "author"), Time: at,
		Policy: &Policy{Text: rapid.StringN(0, 40, 80).Draw(t, "text"), Unknown: []byte(`{"new":[1]}`)},
		To:     uint64(small.Draw(t, "to")), BasedOn: uint64(rapid.SampledFrom([]int{0, 0, 1, 5}).Draw(t, "based on")),
		Geometry: &Geometry{Bits: uint64(small.Draw(t, "bits")), Hashes: 7}, Scheme: &Scheme{Version: 2},
		Model:   fmt.Sprint("m", small.Draw(t, "model")),
		Target:  target(),
		Cordon:  &Cordon{Target: target(), Expiry: expiry.Draw(t, "expiry")},
		Revoked: &Revoked{Serial: fmt.Sprint(small.Draw(t, "serial")), Until: expiry.Draw(t, "until")},
		APIKeys: uint64(small.Draw(t, "keys")),
	}
}

// TestSameCommandsMakeTheSameBytes runs commands through one replica in memory, and through another one that goes through
// bytes: commands as the log has them, and the state as a snapshot has it, wherever one is taken.
func TestSameCommandsMakeTheSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, other := first(), first()
		for i := range rapid.IntRange(1, 60).Draw(t, "commands") {
			c := drawCommand(t)
			raw, err := encodeCommand(c)
			if err != nil {
				t.Fatal(err)
			}
			logged, err := decodeCommand(raw)
			if err != nil {
				t.Fatal(err)
			}
			before, err := encodeState(one)
			if err != nil {
				t.Fatal(err)
			}
			h, next, r := apply(one, c, uint64(i+1))
			h2, next2, r2 := apply(other, logged, uint64(i+1))
			after, _ := encodeState(one)
			if !bytes.Equal(before, after) {
				t.Fatalf("apply changed the state that it was given:\n%s\n%s", before, after)
			}
			if r != r2 || (h == nil) != (h2 == nil) || (h != nil && !bytes.Equal(h.raw, h2.raw)) {
				t.Fatalf("%+v: results %v, %v; states\n%s\n%s", c, r, r2, h.raw, h2.raw)
			}
			one, other = next, next2
			if h != nil && rapid.Bool().Draw(t, "snapshot") {
				restored, err := parseHeld(h2.raw)
				if err != nil {
					t.Fatal(err)
				}
				other = restored.state
			}
		}
	})
}
