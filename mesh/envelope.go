package mesh

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// MaxMessage is the most bytes of one SendReliable: a digest of the largest geometry fits. Every receiver may have to
// hold maxInboxBytes of them.
const MaxMessage = 4 << 20

const (
	maxSignature     = 128 // ECDSA P-256 takes up to 72 in ASN.1, P-384 104, Ed25519 64
	envelopeOverhead = 256 // sender, signature and lengths
)

const envelopeVersion = 1

var errSignature = errors.New("signature does not fit")

// envelope is a message with its sender, because memberlist names none: its gossip key is shared by all members, so
// only the signature tells them apart. It does not stop a member from sending another's message again; a message must
// carry its own version.
type envelope struct {
	sender    string
	signature []byte
	payload   []byte
}

// appendEnvelope appends the wire form: version (1 B), sender and signature (each length-prefixed), payload (the rest).
func appendEnvelope(b []byte, e envelope) []byte {
	b = append(b, envelopeVersion)
	b = appendBytes(b, e.sender)
	b = appendBytes(b, e.signature)
	return append(b, e.payload...)
}

// parseEnvelope reads an envelope. It keeps b.
func parseEnvelope(b []byte) (envelope, error) {
	if len(b) > MaxMessage+envelopeOverhead {
		return envelope{}, fmt.Errorf("parse envelope: %w", ErrTooLarge)
	}
	r := reader{b: b}
	if v := r.byte(); r.err == nil && v != envelopeVersion {
		r.fail(fmt.Errorf("version %d is unknown", v))
	}
	e := envelope{sender: string(r.bytes(64)), signature: r.bytes(maxSignature), payload: r.b}
	if r.err != nil {
		return envelope{}, fmt.Errorf("parse envelope: %w", r.err)
	}
	return e, nil
}

// signed returns what a signature is over: a hash of its purpose, mesh, sender and payload, so that it cannot be taken
// for a signature of anything else.
func signed(mesh, sender string, payload []byte) []byte {
	h := sha256.New()
	h.Write(appendBytes(appendBytes([]byte("kvmesh message\x00"), mesh), sender))
	h.Write(payload)
	return h.Sum(nil)
}

// seal signs payload with the identity's key.
func seal(id Identity, mesh, sender string, payload []byte) ([]byte, error) {
	key, sum := id.signer(), signed(mesh, sender, payload)
	var opts crypto.SignerOpts = crypto.SHA256
	if _, ok := key.(ed25519.PrivateKey); ok {
		opts = crypto.Hash(0) // Ed25519 signs the sum as a message
	}
	sig, err := key.Sign(rand.Reader, sum, opts)
	if err != nil {
		return nil, fmt.Errorf("sign message: %w", err)
	}
	out := make([]byte, 0, len(payload)+envelopeOverhead)
	return appendEnvelope(out, envelope{sender: sender, signature: sig, payload: payload}), nil
}

// check reports whether e was signed with the private half of key.
func (e envelope) check(mesh string, key crypto.PublicKey) error {
	sum := signed(mesh, e.sender, e.payload)
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if ecdsa.VerifyASN1(k, sum, e.signature) {
			return nil
		}
	case ed25519.PublicKey:
		if ed25519.Verify(k, sum, e.signature) {
			return nil
		}
	}
	return errSignature
}
