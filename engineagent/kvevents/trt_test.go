package kvevents

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

// trtJSON writes one event. Fields are further ones of the event itself.
func trtJSON(id int, fields, data string) string {
	if fields == "" {
		fields = `"window_size":4096`
	}
	return fmt.Sprintf(`{"event_id":%d,%s,"hash_algo":"v1_block_key","data":%s}`, id, fields, data)
}

func storedJSON(parent string, blocks ...string) string {
	return fmt.Sprintf(`{"type":"stored","parent_hash":%s,"blocks":[%s]}`, parent, strings.Join(blocks, ","))
}

// blockJSON writes one block. Fields are further ones.
func blockJSON(hash, fields string, tokens ...int) string {
	var list []string
	for _, id := range tokens {
		list = append(list, fmt.Sprintf(`{"type":"unique_token","token_id":%d,"token_extra_id":0}`, id))
	}
	if !strings.Contains(fields, "cache_level") {
		fields += `,"cache_level":0`
	}
	return fmt.Sprintf(`{"type":"stored_block","block_hash":%s,"tokens":[%s]%s,"priority":35}`, hash,
		strings.Join(list, ","), fields)
}

const (
	createdJSON = `{"type":"created","num_blocks_per_cache_level":[10,0]}`
	offloadJSON = `{"type":"updated","block_hash":7,"priority":null,` +
		`"cache_level":{"type":"event_diff","new_value":1,"old_value":0}}`
)

func removedJSON(hashes string) string { return `{"type":"removed","block_hashes":[` + hashes + `]}` }

// drainedWords writes an answer in one line.
func drainedWords(d *Drained) string {
	var s []string
	if d.Restarted {
		s = append(s, "restarted")
	}
	for _, r := range d.Ranks {
		line := fmt.Sprintf("rank %d:", r.Rank)
		if r.Gap {
			line += " gap;"
		}
		for i := range r.Events {
			line += " " + eventWords(&r.Events[i]) + ";"
		}
		s = append(s, strings.TrimSuffix(line, ";"))
	}
	if d.Skipped > 0 {
		s = append(s, fmt.Sprintf("%d skipped", d.Skipped))
	}
	return strings.Join(s, " | ")
}

// Each script is a sequence of answers to one Drainer.
func TestDrainer(t *testing.T) {
	type answer struct {
		events []string
		want   string
	}
	two := storedJSON("null", blockJSON("-5", "", 1, 2), blockJSON("7", "", 3, 4))
	const twoWords = "stored 18446744073709551611 7, tokens 1 2 3 4 by 2, gpu, group 0 full, extras 0 0"
	begin := answer{[]string{trtJSON(0, "", createdJSON), trtJSON(1, "", two)}, "rank 0: " + twoWords}
	for _, tt := range []struct {
		name    string
		answers []answer
	}{
		{"nothing yet, then the first", []answer{{nil, ""}, {nil, ""}, begin}},
		{"hexadecimal hashes, of which the last 16 digits count", []answer{begin, {[]string{
			trtJSON(2, "", storedJSON(`"00000000000000000000000000000007"`, blockJSON(`"ff"`, "", 5, 6))),
			trtJSON(3, "", removedJSON(`"ff",-1,18446744073709551615,"ABCDEF0123456789ffffffffffffffff"`)),
		}, "rank 0: stored 255 after 7, tokens 5 6 by 2, gpu, group 0 full, extras 0; removed 255 18446744073709551615 " +
			"18446744073709551615 18446744073709551615, gpu, group 0"}}},
		{"unknown types, odd events, and what they do not break", []answer{begin, {[]string{
			trtJSON(2, "", `{"type":"paused","blocks":3}`), trtJSON(3, "", `{"type":"stored","parent_hash":null,"blocks":3}`),
			trtJSON(4, "", `{}`), `{}`, `5`, `null`, trtJSON(5, "", `null`), trtJSON(6, "", `{"type":"updated"}`),
			trtJSON(7, `"window_size":4096,"attention_dp_rank":64`, removedJSON("1")), trtJSON(-1, "", removedJSON("1")),
			trtJSON(7, "", storedJSON("null", blockJSON("null", "", 1, 2))),
			trtJSON(8, "", storedJSON("null", blockJSON("1", ""))),
			trtJSON(9, "", storedJSON("null", blockJSON("1", `,"cache_level":-1`, 1, 2))), trtJSON(10, "", removedJSON("9")),
			trtJSON(11, "", storedJSON("null", blockJSON("1", "", 1<<32, 2))),
		}, "rank 0: removed 9, gpu, group 0 | 14 skipped"}}},
		{"removals that are not understood", []answer{begin, {[]string{
			trtJSON(2, "", removedJSON("7")), trtJSON(3, "", removedJSON("1.5")), trtJSON(4, "", removedJSON("9")),
		}, "rank 0: gap; removed 9, gpu, group 0 | 1 skipped"}, {
			[]string{trtJSON(5, `"attention_dp_rank":0`, `{"type":"removed","hashes":[7]}`), trtJSON(6, "", removedJSON(""))},
			"rank 0: gap | 1 skipped",
		}}},
		{"moved to the host, to disk and back, then removed", []answer{begin, {[]string{
			trtJSON(2, "", offloadJSON),
			trtJSON(3, "", `{"type":"updated","block_hash":7,"cache_level":{"old_value":1,"new_value":2}}`),
			trtJSON(4, "", `{"type":"updated","block_hash":7,"cache_level":{"old_value":2,"new_value":0}}`),
			trtJSON(5, "", `{"type":"updated","block_hash":7,"cache_level":null,"priority":{"old_value":1,"new_value":2}}`),
			trtJSON(6, "", `{"type":"updated","block_hash":7,"cache_level":{"old_value":1,"new_value":1}}`),
			trtJSON(7, "", removedJSON("7")),
		}, "rank 0: removed 7, gpu, group 0; stored 7, tokens by 0, cpu, group 0 full; removed 7, cpu, group 0; " +
			"stored 7, tokens by 0, disk, group 0 full; removed 7, disk, group 0; stored 7, tokens by 0, gpu, group 0 full; " +
			"removed 7, gpu, group 0; removed 7, cpu, group 0; removed 7, disk, group 0"}}},
		{"blocks of one event in two tiers", []answer{{
			[]string{trtJSON(0, "", storedJSON("null", blockJSON("1", "", 1, 2),
				blockJSON("2", `,"cache_level":1`, 3, 4), blockJSON("3", `,"cache_level":1`, 5, 6)))},
			"rank 0: stored 1, tokens 1 2 by 2, gpu, group 0 full, extras 0; stored 2 3 after 1, tokens 3 4 5 6 by 2, cpu, " +
				"group 0 full, extras 0 0",
		}}},

		{"the first answer of one who comes late", []answer{{[]string{trtJSON(3, "", removedJSON("1"))}, "rank 0: gap"}}},
		{"an overflow", []answer{begin, {[]string{trtJSON(9, "", two)}, "rank 0: gap; " + twoWords}}},
		{"an overflow within an answer", []answer{begin, {
			[]string{trtJSON(2, "", removedJSON("7")), trtJSON(9, "", two)},
			"rank 0: gap; " + twoWords,
		}}},
		{"another process", []answer{begin, {nil, ""}, {begin.events, "restarted | rank 0: " + twoWords}}},
		{"another process whose first events are lost", []answer{begin, {
			[]string{trtJSON(1, "", two)},
			"restarted | rank 0: gap; " + twoWords,
		}}},
		{"another process has another size of blocks", []answer{begin, {
			[]string{trtJSON(0, "", storedJSON("null",
				blockJSON("1", "", 1, 2, 3), blockJSON("2", "", 4, 5, 6)))},
			"restarted | rank 0: stored 1 2, tokens 1 2 3 4 5 6 by 3, gpu, group 0 full, extras 0 0",
		}}},
		{"a number twice in an answer", []answer{begin, {
			[]string{trtJSON(2, "", removedJSON("7")), trtJSON(2, "", two)},
			"rank 0: gap; " + twoWords,
		}}},
		{"ranks count on their own", []answer{{[]string{
			trtJSON(0, `"attention_dp_rank":1`, two), trtJSON(0, `"attention_dp_rank":0`, two),
			trtJSON(1, `"attention_dp_rank":1`, two),
		}, "rank 0: " + twoWords + " | rank 1: " + twoWords + "; " + twoWords}, {[]string{
			trtJSON(1, `"attention_dp_rank":0`, removedJSON("7")), trtJSON(5, `"attention_dp_rank":1`, removedJSON("7")),
		}, "rank 0: removed 7, gpu, group 0 | rank 1: gap; removed 7, gpu, group 0"}, {[]string{
			trtJSON(0, `"attention_dp_rank":1`, two),
		}, "restarted | rank 1: " + twoWords}}},

		{"part of a block at the end", []answer{begin, {[]string{
			trtJSON(2, "", storedJSON("7", blockJSON("8", "", 5, 6), blockJSON("9", "", 7))), trtJSON(3, "", removedJSON("9")),
			trtJSON(4, "", storedJSON("8", blockJSON("9", "", 7))),
		}, "rank 0: stored 8 after 7, tokens 5 6 by 2, gpu, group 0 full, extras 0; removed 9, gpu, group 0"}}},
		{"part of a block elsewhere, and more than a block", []answer{begin, {[]string{
			trtJSON(2, "", storedJSON("null", blockJSON("8", "", 5), blockJSON("9", "", 7, 8))),
			trtJSON(3, "", storedJSON("null", blockJSON("8", "", 5, 6, 7))),
		}, "2 skipped"}}},
		{"single blocks wait for one that follows another", []answer{{[]string{
			trtJSON(0, "", storedJSON("null", blockJSON("1", "", 9))),
			trtJSON(1, "", storedJSON("null", blockJSON("2", "", 1, 2))),
		}, ""}, {
			[]string{trtJSON(2, "", storedJSON("2", blockJSON("3", "", 3, 4)))},
			"rank 0: stored 2, tokens 1 2 by 2, gpu, group 0 full, extras 0; " +
				"stored 3 after 2, tokens 3 4 by 2, gpu, group 0 full, extras 0",
		}}},
		{"what happens to blocks that wait", []answer{{[]string{
			trtJSON(0, "", storedJSON("null", blockJSON("1", "", 1, 2))),
			trtJSON(1, "", storedJSON("null", blockJSON("7", "", 3, 4))),
			trtJSON(2, "", removedJSON("1")), trtJSON(3, "", offloadJSON), trtJSON(4, "", two),
		}, "rank 0: stored 7, tokens 3 4 by 2, cpu, group 0 full, extras 0; " + twoWords}}},
		{"a gap takes what waits", []answer{
			{[]string{trtJSON(0, "", storedJSON("null", blockJSON("1", "", 1, 2)))}, ""},
			{[]string{trtJSON(5, "", two)}, "rank 0: gap; " + twoWords},
		}},

		{"windows: the largest is full attention, whichever comes first", []answer{{[]string{
			trtJSON(0, `"window_size":128`, createdJSON), trtJSON(1, `"window_size":4096`, createdJSON),
			trtJSON(2, `"window_size":128`, two), trtJSON(3, `"window_size":4096`, two),
			trtJSON(4, `"window_size":128`, removedJSON("7")), trtJSON(5, `"window_size":128`, offloadJSON),
		}, "rank 0: " + strings.Replace(twoWords, "group 0 full", "group 1 sliding 128", 1) + "; " + twoWords +
			"; removed 7, gpu, group 1; removed 7, gpu, group 1; stored 7, tokens by 0, cpu, group 1 sliding 128"}}},
		{"windows: a larger one comes later", []answer{
			{[]string{trtJSON(0, `"window_size":128`, two)}, "rank 0: " + twoWords},
			{
				[]string{trtJSON(1, `"window_size":4096`, two), trtJSON(2, `"window_size":128`, two)},
				"rank 0: gap; " + twoWords + "; " + strings.Replace(twoWords, "group 0 full", "group 1 sliding 128", 1),
			},
		}},
		{"windows: a smaller one comes later", []answer{begin, {
			[]string{trtJSON(2, `"window_size":64`, removedJSON("7"))},
			"rank 0: removed 7, gpu, group 1",
		}}},
		{"layer groups: one without a smaller window is not known", []answer{{[]string{
			trtJSON(0, `"window_size":4096,"layer_group_id":0`, two), trtJSON(1, `"window_size":4096,"layer_group_id":1`, two),
			trtJSON(2, `"window_size":128,"layer_group_id":2`, two),
			trtJSON(3, `"window_size":128,"layer_group_id":3`, removedJSON("7")),
		}, "rank 0: " + twoWords + "; " + strings.Replace(twoWords, "group 0 full", "group 1 other", 1) + "; " +
			strings.Replace(twoWords, "group 0 full", "group 2 sliding 128", 1) + "; removed 7, gpu, group 3"}}},
		{"no windows, in old versions", []answer{{[]string{trtJSON(0, `"x":1`, two)}, "rank 0: " + twoWords}}},

		{"adapter, media and salt", []answer{{
			[]string{trtJSON(0, "", strings.Replace(storedJSON("null",
				blockJSON("1", `,"cache_salt":"s","mm_keys":[{"type":"mm_key","hash":"abcd","start_offset":4}]`, 1, 2),
				blockJSON("2", `,"cache_salt":"s","mm_keys":[]`, 3, 4)), `"blocks"`, `"lora_name":"ad","blocks"`, 1))},
			`rank 0: stored 1 2, tokens 1 2 3 4 by 2, gpu, group 0 full, shows extras {ad;abcd\04;s} {ad}`,
		}}},
		{"adapter as a number, no salt", []answer{{
			[]string{trtJSON(0, "", storedJSON("3",
				blockJSON("1", `,"lora_id":7,"cache_salt":null`, 1, 2), blockJSON("2", `,"lora_id":7`, 3, 4)))},
			`rank 0: stored 1 2 after 3, tokens 1 2 3 4 by 2, gpu, group 0 full, shows extras {7} {7}`,
		}}},
		{"pieces of media for tokens", []answer{{
			[]string{trtJSON(0, "", storedJSON("null", `{"block_hash":1,"tokens":[`+
				`{"token_id":1,"token_extra_id":18446744073709551615},{"token_id":"aabbccdd00000102"}]}`, blockJSON("2", "", 3, 4)))},
			`rank 0: stored 1 2, tokens 1 258 3 4 by 2, gpu, group 0 full, extras {18446744073709551615;aabbccdd00000102} {}`,
		}}},
	} {
		var d Drainer
		for i, a := range tt.answers {
			got, err := d.Parse([]byte("[" + strings.Join(a.events, ",\n ") + "]"))
			if err != nil {
				t.Fatalf("%s, answer %d: %v", tt.name, i, err)
			}
			if words, want := drainedWords(&got), extras.ReplaceAllStringFunc(a.want, extraWords); words != want {
				t.Errorf("%s, answer %d:\n got  %s\n want %s", tt.name, i, words, want)
			}
		}
	}
}

func TestDrainerTakesTheLongestOfManySingleBlocksForWhole(t *testing.T) {
	var d Drainer
	var last Drained
	for id := range maxWaiting + 1 {
		tokens := slices.Repeat([]int{id}, 2+id%3)
		got, err := d.Parse([]byte("[" + trtJSON(id, "", storedJSON("null", blockJSON(fmt.Sprint(id), "", tokens...))) + "]"))
		if err != nil || id < maxWaiting && len(got.Ranks) > 0 {
			t.Fatal(id, err, got)
		}
		last = got
	}
	if d.block != 4 || len(last.Ranks) != 1 || len(last.Ranks[0].Events) != maxWaiting/3 {
		t.Errorf("blocks of %d tokens, %d events", d.block, len(last.Ranks[0].Events))
	}
}

func TestDrainerThatKnowsTheSizeOfBlocksWaitsForNothing(t *testing.T) {
	d := Drainer{BlockTokens: 2}
	got, err := d.Parse([]byte("[" + trtJSON(0, "", storedJSON("null", blockJSON("1", "", 1, 2))) + "]"))
	if want := "rank 0: stored 1, tokens 1 2 by 2, gpu, group 0 full, extras 0"; err != nil || drainedWords(&got) != want {
		t.Errorf("got %s, %v, want %s", drainedWords(&got), err, want)
	}
}

func TestDrainerRefusesWhatIsNoList(t *testing.T) {
	for _, bad := range []string{
		``, `{}`, `[`, `"x"`, `5`, `[{}`, `[{},]`, `[{}] 1`, `[{}]]`, `[1 2]`, `]`, `[` + strings.Repeat("[", 20_000),
		`[` + strings.Repeat("1,", maxDrained) + `1]`, strings.Repeat(" ", MaxPayload+1),
	} {
		var d Drainer
		if got, err := d.Parse([]byte(bad)); err == nil {
			t.Errorf("%.40q passed as %s", bad, drainedWords(&got))
		}
	}
	var d Drainer
	for _, empty := range []string{`[]`, ` null `, "[ ]\n"} {
		if got, err := d.Parse([]byte(empty)); err != nil || !reflect.DeepEqual(got, Drained{}) {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
}

func TestDrainerBoundsOneEvent(t *testing.T) {
	var d Drainer
	long := removedJSON(strings.Repeat("1,", maxCommas) + "1")
	got, err := d.Parse([]byte("[" + trtJSON(0, "", long) + "," + trtJSON(1, "", removedJSON("1")) + "]"))
	if words := drainedWords(&got); err != nil || words != "rank 0: gap | 1 skipped" {
		t.Errorf("%s, %v", words, err)
	}
}

func TestIDs(t *testing.T) {
	var ids IDs
	for _, tt := range []struct {
		id           int64
		gap, restart bool
	}{
		{0, false, false},
		{1, false, false},
		{2, false, false},
		{5, true, false},
		{6, false, false},
		{6, true, true},
		{0, false, true},
		{1, false, false},
		{3, true, false},
		{1, true, true},
	} {
		if gap, restart := ids.Next(tt.id); gap != tt.gap || restart != tt.restart {
			t.Errorf("%d: gap %v, restart %v", tt.id, gap, restart)
		}
	}
	late := IDs{}
	if gap, restart := late.Next(7); !gap || restart {
		t.Errorf("late: gap %v, restart %v", gap, restart)
	}
}

// FuzzDrainer feeds an answer twice: events fit together, and the second time is another process.
func FuzzDrainer(f *testing.F) {
	stored := storedJSON("1", blockJSON(`"a"`, "", 1), blockJSON("2", `,"cache_level":1`, 2))
	f.Add([]byte("[" + trtJSON(0, "", stored) + "]"))
	f.Add([]byte("[" + trtJSON(3, "", removedJSON("-1,18446744073709551615")) + "," + trtJSON(4, "", offloadJSON) + "]"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var d Drainer
		first, err := d.Parse(body)
		if err != nil {
			return
		}
		again, err := d.Parse(body)
		if err != nil || again.Restarted != (len(d.ids) > 0) {
			t.Fatalf("again: %v, restarted %v", err, again.Restarted)
		}
		size := 0
		for _, r := range slices.Concat(first.Ranks, again.Ranks) {
			for _, e := range r.Events {
				if e.Kind == cachestate.BlocksStored && len(e.Tokens) != len(e.Hashes)*e.BlockTokens {
					t.Fatalf("odd event %s", eventWords(&e))
				}
				if len(e.Hashes) == 0 || len(e.Extras) > 0 && len(e.Extras) != len(e.Hashes) || e.Group < 0 || !e.Tier.Valid() {
					t.Fatalf("odd event %s", eventWords(&e))
				}
				size += len(e.Hashes) + len(e.Tokens)
			}
		}
		if size > 8*len(body) {
			t.Fatalf("%d hashes and tokens out of %d bytes", size, len(body))
		}
	})
}
