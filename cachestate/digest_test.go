package cachestate

import (
	"testing"
	"time"
)

func TestDigestForgetsOldVersions(t *testing.T) {
	d, keys := NewDigest("a/e", TierGPU, 1, DefaultGeometry()), randomKeys(1, 200)
	for i := range 10 {
		d.Add(keys[i])
		d.Publish(epoch.Add(time.Duration(i) * 10 * time.Second))
	}
	for version, want := range map[uint64]bool{0: false, 5: false, 6: true, 9: true, 10: true, 11: false} {
		if _, ok := d.Since(version); ok != want {
			t.Errorf("since version %d: got %v, want %v", version, ok, want)
		}
	}
	for i := 10; i < 200; i++ {
		d.Add(keys[i])
		d.Publish(epoch.Add(90 * time.Second))
	}
	if len(d.history.steps) != historySteps {
		t.Errorf("got %d versions of one moment, want %d", len(d.history.steps), historySteps)
	}
}

func TestManyFlipsArePublishedAsWholeDigest(t *testing.T) {
	keys := randomKeys(1, 1000)
	d, _ := published("a/e", 1, DefaultGeometry(), keys...)
	for _, k := range keys {
		d.Remove(k)
	}
	delta := d.Publish(epoch)
	if !delta.Full() || len(AppendDelta(nil, &delta)) > 50 {
		t.Errorf("all removed: got %d flips, %d bytes", len(delta.Clear), len(AppendDelta(nil, &delta)))
	}
	if d.Fill() != 0 || delta.Keys != 0 || delta.Checksum != 0 {
		t.Errorf("all removed: got fill %v, %d keys, checksum %x", d.Fill(), delta.Keys, delta.Checksum)
	}
}

func TestSaturatedCounterKeepsItsBit(t *testing.T) {
	d, k := NewDigest("a/e", TierGPU, 1, DefaultGeometry()), Key(12345)
	for range 300 {
		d.Add(k)
	}
	for range 300 {
		d.Remove(k)
	}
	if !d.has(k) || d.keys != 0 {
		t.Errorf("got has %v, %d keys", d.has(k), d.keys)
	}
}

func TestRemovingAnUnknownKeyDoesNoHarm(t *testing.T) {
	d := NewDigest("a/e", TierGPU, 1, DefaultGeometry())
	d.Remove(1)
	d.Add(2)
	if d.keys != 1 || !d.has(2) {
		t.Errorf("got %d keys", d.keys)
	}
}

func BenchmarkDigestAddRemove(b *testing.B) {
	d, _ := published("a/e", 1, DefaultGeometry(), randomKeys(1, 6000)...)
	keys := randomKeys(2, 1024)
	for i := 0; b.Loop(); i++ {
		d.Add(keys[i%1024])
		d.Remove(keys[i%1024])
	}
}
