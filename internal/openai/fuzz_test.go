package openai

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// compareWithTwin parses and walks body in both ways.
func compareWithTwin(t *testing.T, route Route, layout Layout, body []byte) {
	t.Helper()
	r, err := Parse(route, body)
	tw, ok := twinParse(route, body)
	if (err == nil) != ok {
		t.Fatalf("Parse(%v, %q) = %v, twin accepts: %v", route, body, err, ok)
	}
	if e, isError := errors.AsType[*Error](err); err != nil && (!isError || e.Status < 400 || e.Reason == "") {
		t.Fatalf("Parse(%v, %q): %v is not a complete *Error", route, body, err)
	}
	if err != nil || r.Keyless != "" {
		return
	}
	got, err := walked(r, "m", layout)
	if err != nil {
		t.Fatalf("walk of %q: %v", body, err)
	}
	tw.layout = layout
	want := tw.walk("m")
	if !comparableText(body) {
		return
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(piece{})); diff != "" {
		t.Fatalf("walk of %v (-twin +walk):\n%s\nof %s", route, diff, body)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(uint8(s.route), uint16(s.layout), s.body)
	}
	f.Fuzz(func(t *testing.T, route uint8, layout uint16, body []byte) {
		if rt := Route(route%uint8(RouteScore) + 1); rt <= RouteScore {
			compareWithTwin(t, rt, Layout(layout), body)
		}
	})
}

// events reads a stream fed in pieces, whose lengths the bytes of cuts give over and over.
func events(route Route, body, cuts []byte, maxLine int) (list []Event, s *Stream, err error) {
	s = NewStream(route, maxLine)
	for i := 0; len(body) > 0; i++ {
		n := len(body)
		if len(cuts) > 0 {
			n = min(n, int(cuts[i%len(cuts)])%64+1)
		}
		part := bytes.Clone(body[:n])
		err = s.Feed(part, func(e Event) bool {
			e.Raw = bytes.Clone(e.Raw)
			list = append(list, e)
			return true
		})
		clear(part) // what was fed must not be used again
		if err != nil {
			return list, s, err
		}
		body = body[n:]
	}
	return list, s, s.Close()
}

func FuzzStream(f *testing.F) {
	for _, tt := range streamTests {
		f.Add(uint8(tt.route), []byte(tt.body), []byte{1})
		f.Add(uint8(tt.route), []byte(tt.body), []byte{7, 0, 30})
	}
	f.Fuzz(func(t *testing.T, route uint8, body, cuts []byte) {
		rt := Route(route%uint8(RouteResponseByID) + 1)
		whole, s1, err1 := events(rt, body, nil, len(body))
		parts, s2, err2 := events(rt, body, append(bytes.Clone(cuts), 0), len(body))
		if diff := cmp.Diff(whole, parts); diff != "" || !errors.Is(err1, err2) {
			t.Fatalf("%q in pieces %v (-whole +pieces): %v, %v\n%s", body, cuts, err1, err2, diff)
		}
		u1, ok1 := s1.Usage()
		u2, ok2 := s2.Usage()
		if u1 != u2 || ok1 != ok2 {
			t.Fatalf("usage %+v %v, in pieces %+v %v", u1, ok1, u2, ok2)
		}
		var all []byte
		for _, e := range whole {
			all = append(all, e.Raw...)
		}
		if !bytes.HasPrefix(body, all) || err1 == nil && len(all) != len(body) {
			t.Fatalf("events of %q hold %q", body, all)
		}
	})
}
