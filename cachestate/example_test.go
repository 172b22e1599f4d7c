package cachestate_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
)

// Two prompts that share a document share its keys, whatever follows.
func ExampleScheme_Prompt() {
	const model, content = 0x10, 0x20
	walk := func(question string) func(func(byte, []byte) bool) {
		document := strings.Repeat("All engines hold what they served. ", 60) // 2,100 bytes
		return func(yield func(byte, []byte) bool) {
			_ = yield(model, []byte("llama")) && yield(model|cachestate.CloseField, nil) &&
				yield(cachestate.EndRoot, nil) &&
				yield(content, []byte(document)) && yield(content, []byte(question)) &&
				yield(content|cachestate.CloseField, nil) && yield(cachestate.EndMessage, nil)
		}
	}
	var a, b cachestate.Prompt
	cachestate.DefaultScheme().Prompt(walk("Which ones?"), &a)
	cachestate.DefaultScheme().Prompt(walk("For how long?"), &b)
	for i := range a.Keys {
		fmt.Println(a.Offsets[i], b.Offsets[i], a.Keys[i] == b.Keys[i])
	}
	// Output:
	// 0 0 true
	// 512 512 true
	// 1024 1024 true
	// 1536 1536 true
	// 2048 2048 true
	// 2111 2113 false
}

// An owner publishes what its engine holds; a peer's index answers for all engines at once.
func ExampleIndex() {
	now := time.Unix(0, 0)
	keys := []cachestate.Key{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb}
	index := cachestate.NewIndex(cachestate.DefaultGeometry(), cachestate.TierGPU)

	digest := cachestate.NewDigest("agent1/gpu0", cachestate.TierGPU, 1, cachestate.DefaultGeometry())
	digest.Add(keys[0])
	digest.Add(keys[1])
	delta := digest.Publish(now)
	message := cachestate.AppendDelta(nil, &delta)

	received, _, err := cachestate.ParseDelta(message, "agent1", cachestate.DefaultGeometry())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(index.Apply(&received))
	fmt.Println(index.Apply(&received))
	slot, _ := index.Slot("agent1/gpu0")
	fmt.Println(index.Overlap(keys, nil, nil)[slot], "of", len(keys), "keys")
	// Output:
	// applied
	// duplicate
	// 2 of 3 keys
}

// A mirror guesses what an engine holds, from the requests it serves.
func ExampleMirror() {
	digest := cachestate.NewDigest("agent1/gpu0", cachestate.TierGPU, 1, cachestate.DefaultGeometry())
	mirror := cachestate.NewMirror(100_000, 16, 1000, func(k cachestate.Key, resident bool) {
		if resident {
			digest.Add(k)
		} else {
			digest.Remove(k)
		}
	})
	prompt := &cachestate.Prompt{Keys: []cachestate.Key{11, 22, 33}, Offsets: []uint32{0, 512, 900}, Bytes: 900}

	first := mirror.Start(prompt, 4)
	first.Prefilled()
	first.Finish(225, 40)
	resident := mirror.Overlap(prompt.Keys)
	fmt.Println(resident, digest.Full().Keys)
	fmt.Println(prompt.Tokens(resident, 4), "tokens need no prefill")
	// Output:
	// 3 3
	// 224 tokens need no prefill
}
