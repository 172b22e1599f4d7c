package mesh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// GossipKeyBytes is the size of a gossip key: AES-256.
const GossipKeyBytes = 32

// clockSkew is how far a certificate's start is set back, so that an agent whose clock is late believes it too.
const clockSkew = time.Hour

// Authority issues the certificates of one mesh.
type Authority struct {
	mesh    string
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	trusted []*x509.Certificate // all CAs that agents are to believe; cert is one of them
}

// NewAuthority makes a CA for mesh (ECDSA P-256) that is valid from now.
func NewAuthority(mesh string, validity time.Duration) (*Authority, error) {
	if !meshPattern.MatchString(mesh) {
		return nil, fmt.Errorf("make a CA: %q is no mesh id", mesh)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a CA: %w", err)
	}
	t := template(&url.URL{Scheme: uriScheme, Host: mesh}, "kvmesh CA of "+mesh, validity)
	t.IsCA, t.MaxPathLenZero, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a CA: %w", err)
	}
	return &Authority{mesh: mesh, cert: cert, key: key, trusted: []*x509.Certificate{cert}}, nil
}

// EphemeralAuthority makes a CA that is never written down, valid for a year. It serves a demo, whose agents share one
// process, and an agent that is alone on loopback; agents of two processes cannot meet with it, since each process
// would trust its own.
func EphemeralAuthority(mesh string) (*Authority, error) { return NewAuthority(mesh, 365*24*time.Hour) }

// LoadAuthority reads ca.pem and ca-key.pem from dir. Of several certificates in ca.pem the one of that key issues.
func LoadAuthority(dir string) (*Authority, error) {
	trusted, err := loadCertificates(filepath.Join(dir, CAFile))
	if err != nil {
		return nil, err
	}
	key, err := loadKey(filepath.Join(dir, CAKeyFile))
	if err != nil {
		return nil, err
	}
	ecKey, ok := key.(*ecdsa.PrivateKey)
	i := slices.IndexFunc(trusted, func(c *x509.Certificate) bool { return samePublicKey(key.Public(), c.PublicKey) })
	if !ok || i < 0 {
		return nil, fmt.Errorf("%s is not the key of %s in %s", CAKeyFile, CAFile, dir)
	}
	cert := trusted[i]
	if len(cert.URIs) != 1 || cert.URIs[0].Scheme != uriScheme || !meshPattern.MatchString(cert.URIs[0].Host) {
		return nil, fmt.Errorf("%s in %s does not say for which mesh it is", CAFile, dir)
	}
	return &Authority{mesh: cert.URIs[0].Host, cert: cert, key: ecKey, trusted: trusted}, nil
}

// Mesh is the mesh whose agents a certifies.
func (a *Authority) Mesh() string { return a.mesh }

// Issue makes a new key and a certificate for the agent name, valid from now, but not longer than the CA.
func (a *Authority) Issue(name string, validity time.Duration) (Identity, error) {
	if !namePattern.MatchString(name) {
		return Identity{}, fmt.Errorf("issue a certificate: %q is no agent's name", name)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("issue a certificate: %w", err)
	}
	t := template(&url.URL{Scheme: uriScheme, Host: a.mesh, Path: "/" + name}, name, validity)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return Identity{}, fmt.Errorf("issue a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return Identity{}, fmt.Errorf("issue a certificate: %w", err)
	}
	return Identity{CAs: a.trusted, Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}, nil
}

func template(uri *url.URL, subject string, validity time.Duration) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // crypto/rand never fails
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: subject}, URIs: []*url.URL{uri},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(validity), BasicConstraintsValid: true,
	}
}

// Write writes ca.pem and ca-key.pem into dir. It never replaces a CA: every agent would have to be issued anew.
func (a *Authority) Write(dir string) error {
	for _, f := range []string{CAFile, CAKeyFile} {
		if _, err := os.Stat(filepath.Join(dir, f)); err == nil {
			return fmt.Errorf("write the CA: %s is in %s already", f, dir)
		}
	}
	if err := writeKey(filepath.Join(dir, CAKeyFile), a.key); err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, CAFile), "CERTIFICATE", 0o644, a.cert.Raw)
}

// Write writes ca.pem, NAME.pem and NAME-key.pem into dir, replacing what is there.
func (i Identity) Write(dir string) error {
	_, name, err := parseURIs(i.Certificate.Leaf.URIs)
	if err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	var cas [][]byte
	for _, ca := range i.CAs {
		cas = append(cas, ca.Raw)
	}
	if err := writePEM(filepath.Join(dir, CAFile), "CERTIFICATE", 0o644, cas...); err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, name+"-key.pem"), i.Certificate.PrivateKey); err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, name+".pem"), "CERTIFICATE", 0o644, i.Certificate.Leaf.Raw)
}

func writeKey(file string, key any) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return writePEM(file, "PRIVATE KEY", 0o600, der)
}

func writePEM(file, kind string, mode os.FileMode, blocks ...[]byte) error {
	var out []byte
	for _, der := range blocks {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	return writeFile(file, out, mode)
}

// writeFile writes a new file and renames it, so that a reader never sees half and a key never has another mode.
func writeFile(file string, b []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".kvmesh-*") // made with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	for _, step := range []func() error{f.Sync, func() error { return f.Chmod(mode) }, f.Close} {
		if e := step(); err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(f.Name(), file)
}

// NewGossipKey makes a gossip key.
func NewGossipKey() []byte {
	key := make([]byte, GossipKeyBytes)
	rand.Read(key)
	return key
}

// LoopbackOnly reports whether all addresses, host or host:port, are on loopback. Names other than localhost are not:
// what they resolve to may change. An agent without certificates may use only such addresses.
func LoopbackOnly(addrs ...string) bool {
	for _, a := range addrs {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			host = a
		}
		ip, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
