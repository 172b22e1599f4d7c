package mesh

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	someAbout = about{
		speaks: protocols{1, 2}, instance: 0xfeed, started: 1700000000,
		quic: netip.MustParseAddrPort("10.0.0.1:7081"), meta: []byte("zone=a"),
	}
	someKeys = keySet{version: 3, keys: [][]byte{make([]byte, GossipKeyBytes), bytes.Repeat([]byte{7}, GossipKeyBytes)}}
	otherWay = about{speaks: protocols{1, 1}, instance: 1, quic: netip.MustParseAddrPort("[2001:db8::1]:1")}
)

var wireOpts = cmp.Options{
	cmp.AllowUnexported(about{}, hello{}, protocols{}, offer{}),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func FuzzNodeMeta(f *testing.F) {
	f.Add(encodeAbout(someAbout))
	f.Add(encodeAbout(otherWay))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAbout(b)
		if err != nil {
			return
		}
		again, err := parseAbout(append(encodeAbout(a), "what a later version adds"...))
		if diff := cmp.Diff(a, again, wireOpts); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		if n := len(encodeAbout(a)); n > maxAbout {
			t.Errorf("%d bytes", n)
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, hello{someAbout, "g1", 0, someKeys.offer()}))
	f.Add(appendHello(nil, hello{otherWay, "a.b-c_d", 1 << 40, offer{}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readHello(bytes.NewReader(appendHello(nil, h)))
		if diff := cmp.Diff(h, again, wireOpts); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}

func FuzzGossipKeys(f *testing.F) {
	f.Add(appendOffer(nil, someKeys.offer()))
	f.Add(appendOffer(nil, someKeys.full()))
	f.Add(appendOffer(nil, offer{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := readOffer(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readOffer(bytes.NewReader(appendOffer(nil, o)))
		if diff := cmp.Diff(o, again, wireOpts); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}

func TestBadGossipKeysAreErrors(t *testing.T) {
	full := appendOffer(nil, someKeys.full())
	for i := range full {
		if _, err := readOffer(bytes.NewReader(full[:i])); err == nil {
			t.Errorf("keys cut to %d bytes were taken", i)
		}
	}
	wrong := someKeys.full()
	wrong.sum[0]++
	for _, bad := range []offer{wrong, {version: maxKeyVersion + 1}, {keys: slices.Repeat(someKeys.keys[:1], maxGossipKeys+1)}} {
		if _, err := readOffer(bytes.NewReader(appendOffer(nil, bad))); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if _, err := readOffer(bytes.NewReader(appendBytes(nil, make([]byte, maxOffer+1)))); err == nil {
		t.Error("an oversized offer was read")
	}
	later := appendBytes(nil, append(full[1:len(full):len(full)], "what a later version adds"...))
	if o, err := readOffer(bytes.NewReader(later)); err != nil || len(o.keys) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestHelloWithoutDialIsTaken(t *testing.T) {
	b := appendBytes(nil, appendBytes(appendBytes(nil, encodeAbout(someAbout)), "g1"))
	if h, err := readHello(bytes.NewReader(b)); err != nil || h.dial != 0 || h.name != "g1" {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestHelloOfALaterVersionIsTaken(t *testing.T) {
	later := append(encodeAbout(someAbout), "what a later version knows of itself"...)
	b := binary.AppendUvarint(appendBytes(appendBytes(nil, later), "g1"), 7)
	b = appendBytes(b, appendOffer(nil, someKeys.offer())[1:])
	b = append(b, "and what it says beside that"...)
	h, err := readHello(bytes.NewReader(appendBytes(nil, b)))
	want := hello{about: someAbout, name: "g1", dial: 7, keys: someKeys.offer()}
	if diff := cmp.Diff(want, h, wireOpts); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestBadBytesAreErrors(t *testing.T) {
	full := encodeAbout(someAbout)
	for i := range full {
		if _, err := parseAbout(full[:i]); err == nil {
			t.Errorf("node metadata cut to %d bytes was taken", i)
		}
	}
	for _, bad := range []about{
		{quic: netip.MustParseAddrPort("0.0.0.0:1")},
		{quic: netip.MustParseAddrPort("10.0.0.1:0")},
		{},
		{quic: someAbout.quic, meta: make([]byte, MaxMeta+1)},
		{quic: someAbout.quic, started: 1 << 50},
		{quic: someAbout.quic, speaks: protocols{oldest: 2, newest: 1}},
	} {
		if _, err := parseAbout(encodeAbout(bad)); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	for _, name := range []string{"", "a/b", "a b", "-a", string(bytes.Repeat([]byte("a"), 64))} {
		if _, err := readHello(bytes.NewReader(appendHello(nil, hello{someAbout, name, 1, offer{}}))); err == nil {
			t.Errorf("a hello of %q was taken", name)
		}
	}
}
