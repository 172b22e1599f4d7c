package mesh

import (
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
	"strings"
	"time"
)

// The files of an identity's folder; an agent's own are NAME.pem and NAME-key.pem.
const (
	CAFile        = "ca.pem"
	CAKeyFile     = "ca-key.pem" // only where certificates are issued
	GossipKeyFile = "gossip.key"
)

// uriScheme is the scheme of the SAN URI that is an agent's identity: kvmesh://MESH/NAME. The CA's certificate carries
// kvmesh://MESH.
const uriScheme = "kvmesh"

// Identity is an agent's certificate with its key, and the CA that peers' certificates must come from.
type Identity struct {
	Certificate tls.Certificate // Leaf is set; the key is ECDSA or Ed25519
	CA          *x509.Certificate
}

// LoadIdentity reads ca.pem, NAME.pem and NAME-key.pem from dir. What is wrong is said in one sentence; whether the
// identity is the one that is wanted now is for Check to say.
func LoadIdentity(dir, name string) (Identity, error) {
	certFile, keyFile := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	ca, err := loadCertificate(filepath.Join(dir, CAFile))
	if err != nil {
		return Identity{}, err
	}
	leaf, err := loadCertificate(certFile)
	if err != nil {
		return Identity{}, err
	}
	key, err := loadKey(keyFile)
	if err != nil {
		return Identity{}, err
	}
	if !samePublicKey(key.Public(), leaf.PublicKey) {
		return Identity{}, fmt.Errorf("%s is not the key of %s", keyFile, certFile)
	}
	return Identity{CA: ca, Certificate: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}}, nil
}

func loadCertificate(file string) (*x509.Certificate, error) {
	block, err := loadPEM(file, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(block)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", file, err)
	}
	return cert, nil
}

func loadKey(file string) (crypto.Signer, error) {
	block, err := loadPEM(file, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(block)
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

func loadPEM(file, kind string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err // names the operation and the file already
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no PEM block %q", file, kind)
	}
	return block.Bytes, nil
}

// Check returns the first reason why i cannot speak for the agent name of mesh at now, in a sentence for an operator.
func (i Identity) Check(mesh, name string, now time.Time) error {
	leaf := i.Certificate.Leaf
	if leaf == nil || i.CA == nil || i.Certificate.PrivateKey == nil {
		return errors.New("no certificate, key or CA was given")
	}
	if err := fresh(i.CA, now); err != nil {
		return fmt.Errorf("the CA's %w", err)
	}
	got, err := verify(i.CA, [][]byte{leaf.Raw}, now)
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

// verify believes chain, the DER certificates that a peer proved to own, if ca signed its first one for now and that
// one carries exactly one kvmesh URI. There are no intermediate CAs.
func verify(ca *x509.Certificate, chain [][]byte, now time.Time) (claim, error) {
	if len(chain) == 0 {
		return claim{}, &certError{reasonCertificate, "there is no certificate"}
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return claim{}, &certError{reasonCertificate, "the certificate cannot be read: " + err.Error()}
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
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
