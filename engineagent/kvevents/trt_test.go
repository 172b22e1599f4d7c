package kvevents

import (
	"fmt"
	"testing"
)

func TestDrainer(t *testing.T) {
	block := func(hash string, level int, tokens ...int) string {
		list := ""
		for i, id := range tokens {
			if i > 0 {
				list += ","
			}
			list += fmt.Sprintf(`{"type":"unique_token","token_id":%d,"token_extra_id":0}`, id)
		}
		return fmt.Sprintf(`{"type":"stored_block","block_hash":%s,"tokens":[%s],"cache_level":%d,"priority":35}`, hash, list, level)
	}
	event := func(id, window int, data string) string {
		return fmt.Sprintf(`{"event_id":%d,"window_size":%d,"hash_algo":"v1_block_key","data":%s}`, id, window, data)
	}
	created := `{"type":"created","num_blocks_per_cache_level":[10,0]}`
	var d Drainer
	for _, tt := range []struct{ name, body, want string }{
		{"nothing yet", `[]`, "gap false restarted false"},
		{
			"the first", "[" + event(0, 4096, created) + "," +
				event(1, 4096, `{"type":"stored","parent_hash":null,"blocks":[`+block("-5", 0, 1, 2)+","+block("7", 0, 3, 4)+`]}`) + "]",
			"gap false restarted false; rank 0: stored [18446744073709551611 7] tokens [1 2 3 4] of 2 gpu group 0 kind 0",
		},
		{
			"hexadecimal, another window, a type to come", "[" +
				event(2, 128, `{"type":"stored","parent_hash":"00000000000000000000000000000007","blocks":[`+block(`"ff"`, 0, 5, 6)+`]}`) + "," +
				event(3, 4096, `{"type":"paused"}`) + "]",
			"gap false restarted false; rank 0: stored [255] after 7 tokens [5 6] of 2 gpu group 1 kind 1",
		},
		{
			"moved to the host and removed", "[" +
				event(4, 4096, `{"type":"updated","block_hash":7,"cache_level":{"type":"event_diff","old_value":0,"new_value":1}}`) + "," +
				event(5, 4096, `{"type":"removed","block_hashes":[7]}`) + "]",
			"gap false restarted false; rank 0: removed [7] gpu group 0, stored [7] tokens [] of 0 cpu group 0 kind 0, " +
				"removed [7] gpu group 0, removed [7] cpu group 0",
		},
		{"an overflow", "[" + event(9, 4096, `{"type":"removed","block_hashes":[1]}`) + "]",
			"gap true restarted false; rank 0: removed [1] gpu group 0, removed [1] cpu group 0"},
		{"another process", "[" + event(0, 4096, created) + "]", "gap false restarted true"},
	} {
		got, err := d.Parse([]byte(tt.body))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if text := describeDrained(got); text != tt.want {
			t.Errorf("%s:\n got  %s\n want %s", tt.name, text, tt.want)
		}
	}
	for _, bad := range []string{``, `{}`, `[`, `"x"`} {
		if _, err := d.Parse([]byte(bad)); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func describeDrained(d Drained) string {
	s := fmt.Sprintf("gap %v restarted %v", d.Gap, d.Restarted)
	for _, r := range d.Ranks {
		s += fmt.Sprintf("; rank %d: ", r.Rank)
		for i, e := range r.Events {
			if i > 0 {
				s += ", "
			}
			s += eventWords(&e)
		}
	}
	return s
}

func FuzzDrainer(f *testing.F) {
	f.Add([]byte(`[{"event_id":0,"window_size":8,"data":{"type":"stored","parent_hash":1,"blocks":[{"block_hash":"a","tokens":[{"token_id":1}]}]}}]`))
	f.Add([]byte(`[{"event_id":3,"data":{"type":"removed","block_hashes":[-1,18446744073709551615]}}]`))
	f.Add([]byte(`[{"event_id":3,"data":{"type":"updated","block_hash":1,"cache_level":{"old_value":0,"new_value":1}}}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var d Drainer
		out, err := d.Parse(body)
		if err != nil {
			return
		}
		for _, r := range out.Ranks {
			for _, e := range r.Events {
				if len(e.Tokens) != len(e.Hashes)*e.BlockTokens {
					t.Fatalf("%d tokens in %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockTokens)
				}
			}
		}
	})
}
