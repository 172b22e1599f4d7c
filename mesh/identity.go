package mesh

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The files of an identity's folder; an agent's own are NAME.pem and NAME-key.pem.
const (
	CAFile        = "ca.pem"     // several certificates while one CA takes over from another
	CAKeyFile     = "ca-key.pem" // only where certificates are issued
	GossipKeyFile = "gossip.key"
	RevokedFile   = "revoked" // serial numbers; may be missing
)

// uriScheme is the scheme of the SAN URI that is an agent's identity: kvmesh://MESH/NAME. The CA's certificate carries
// kvmesh://MESH.
const uriScheme = "kvmesh"

// Identity is an agent's certificate with its key, and the CAs that peers' certificates may come from.
type Identity struct {
	Certificate tls.Certificate     // Leaf is set; the key is ECDSA or Ed25519
	CAs         []*x509.Certificate // one, or several while one takes over from another
}

// LoadIdentity reads ca.pem, NAME.pem and NAME-key.pem from dir. What is wrong is said in one sentence; whether the
// identity is the one that is wanted now is for Check to say.
func LoadIdentity(dir, name string) (Identity, error) {
	certFile, keyFile := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	cas, err := loadCertificates(filepath.Join(dir, CAFile))
	if err != nil {
		return Identity{}, err
	}
	leaves, err := loadCertificates(certFile)
	if err != nil {
		return Identity{}, err
	}
	leaf := leaves[0]
	key, err := loadKey(keyFile)
	if err != nil {
		return Identity{}, err
	}
	if !samePublicKey(key.Public(), leaf.PublicKey) {
		return Identity{}, fmt.Errorf("%s is not the key of %s", keyFile, certFile)
	}
	return Identity{CAs: cas, Certificate: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}}, nil
}

// loadCertificates reads all certificates of a file, at least one.
func loadCertificates(file string) ([]*x509.Certificate, error) {
	blocks, err := loadPEM(file, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for _, der := range blocks {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", file, err)
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

func loadKey(file string) (crypto.Signer, error) {
	blocks, err := loadPEM(file, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(blocks[0])
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", file, err)
	}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		return k, nil
	case ed25519.PrivateKey:
		return k, nil
	}
	return nil, fmt.Errorf("read key %s: it is %T, not ECDSA or Ed25519", file, key)
}

// loadPEM returns the blocks of a file, at least one, all of that kind. A file that ends within a block is half written.
func loadPEM(file, kind string) ([][]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err // names the operation and the file already
	}
	var blocks [][]byte
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			break
		}
		if block.Type != kind {
			return nil, fmt.Errorf("%s holds a PEM block %q, not %q", file, block.Type, kind)
		}
		blocks, b = append(blocks, block.Bytes), rest
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%s holds no PEM block %q", file, kind)
	}
	if bytes.Contains(b, []byte("-----BEGIN")) {
		return nil, fmt.Errorf("%s ends within a PEM block", file)
	}
	return blocks, nil
}

// Check returns the first reason why i cannot speak for the agent name of mesh at now, in a sentence for an operator.
func (i Identity) Check(mesh, name string, now time.Time) error {
	leaf := i.Certificate.Leaf
	if leaf == nil || len(i.CAs) == 0 || i.Certificate.PrivateKey == nil {
		return errors.New("no certificate, key or CA was given")
	}
	if ca := issuer(i.CAs, leaf); ca != nil && fresh(ca, now) != nil {
		return fmt.Errorf("the CA's %w", fresh(ca, now))
	}
	got, err := verify(i.CAs, [][]byte{leaf.Raw}, now)
	switch {
	case err != nil:
		return err
	case got.mesh != mesh:
		return fmt.Errorf("the certificate is for mesh %q, not %q", got.mesh, mesh)
	case got.name != name:
		return fmt.Errorf("the certificate is for agent %q, not %q", got.name, name)
	case !samePublicKey(i.signer().Public(), leaf.PublicKey):
		return errors.New("the key is not the certificate's")
	}
	return nil
}

// Expires returns when the certificate ends.
func (i Identity) Expires() time.Time { return i.Certificate.Leaf.NotAfter }

// Serial returns the certificate's serial number as openssl x509 -serial prints it.
func (i Identity) Serial() string { return serialOf(i.Certificate.Leaf) }

// same reports whether i and other are the same certificate and CAs.
func (i Identity) same(other Identity) bool {
	return i.Certificate.Leaf.Equal(other.Certificate.Leaf) && slices.EqualFunc(i.CAs, other.CAs, (*x509.Certificate).Equal)
}

func (i Identity) signer() crypto.Signer { return i.Certificate.PrivateKey.(crypto.Signer) }

func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// claim is what a verified certificate says.
type claim struct {
	mesh, name string
	cert       *x509.Certificate
}

// certError is why a certificate is not believed; its reason is the one to count.
type certError struct {
	reason reason
	text   string
}

func (e *certError) Error() string { return e.text }

// issuer returns the one of cas that signed leaf, or nil.
func issuer(cas []*x509.Certificate, leaf *x509.Certificate) *x509.Certificate {
	for _, ca := range cas {
		if leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// verify believes chain, the DER certificates that a peer proved to own, if one of cas signed its first one for now and
// that one carries exactly one kvmesh URI. There are no intermediate CAs.
func verify(cas []*x509.Certificate, chain [][]byte, now time.Time) (claim, error) {
	if len(chain) == 0 {
		return claim{}, &certError{reasonCertificate, "there is no certificate"}
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return claim{}, &certError{reasonCertificate, "the certificate cannot be read: " + err.Error()}
	}
	ca := issuer(cas, leaf)
	if ca == nil {
		return claim{}, &certError{reasonCA, "the certificate is not from this mesh's CA"}
	}
	if err := fresh(leaf, now); err != nil {
		return claim{}, &certError{reasonCertificate, "the " + err.Error()}
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	opts := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := leaf.Verify(opts); err != nil {
		return claim{}, &certError{reasonCertificate, "the certificate is not valid: " + err.Error()}
	}
	mesh, name, err := parseURIs(leaf.URIs)
	if err != nil {
		return claim{}, &certError{reasonCertificate, err.Error()}
	}
	return claim{mesh: mesh, name: name, cert: leaf}, nil
}

func fresh(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) {
		return fmt.Errorf("certificate is valid only from %s", c.NotBefore.Format(time.RFC3339))
	}
	if now.After(c.NotAfter) {
		return fmt.Errorf("certificate expired at %s", c.NotAfter.Format(time.RFC3339))
	}
	return nil
}

func parseURIs(uris []*url.URL) (mesh, name string, err error) {
	if len(uris) != 1 || uris[0].Scheme != uriScheme {
		return "", "", errors.New("the certificate does not carry one kvmesh://MESH/NAME")
	}
	mesh, name = uris[0].Host, strings.TrimPrefix(uris[0].Path, "/")
	if !meshPattern.MatchString(mesh) || !namePattern.MatchString(name) {
		return "", "", fmt.Errorf("the certificate's %q names no agent", uris[0])
	}
	return mesh, name, nil
}
