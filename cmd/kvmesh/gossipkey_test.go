package main

import "testing"

func TestGossipKeysAreListedAndRotatedByTheirFingerprints(t *testing.T) {
	addr, guarded := debugServer(t, ""), debugServer(t, "Bearer secret")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"list", "--addr", addr}, "gossip keys, version 3\n  00112233aabbccdd encrypts\n  ffeeddccbbaa0099 decrypts\nwithout them: a7\n"},
		{[]string{"rotate", "--addr", addr}, "gossip keys, version 4\n  0011223344556677 encrypts\n"},
		{[]string{"rotate", "--token-file", file(t, "token", "secret"), "--addr", guarded}, "gossip keys, version 4\n  0011223344556677 encrypts\n"},
	} {
		if r := kvmesh(t, nil, append([]string{"gossip-key"}, tt.args...)...); r.code != 0 || r.out != tt.want {
			t.Errorf("%q: exit code %d, %q%s", tt.args, r.code, r.out, r.errout)
		}
	}
	if r := kvmesh(t, nil, "gossip-key", "rotate", "--addr", guarded); r.code != 1 {
		t.Errorf("without token: exit code %d, %s", r.code, r.out)
	}
}
