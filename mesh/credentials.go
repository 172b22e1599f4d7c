package mesh

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	// reviewEvery is the period of looking at the certificates of open connections: the longest that one outlives its own,
	// or its revocation.
	reviewEvery = time.Second
	// renewAhead before its certificates end, a connection is made anew: longer than the clocks of two agents differ, or the
	// one that is ahead finds the peer gone for a moment.
	renewAhead = time.Minute
)

// credentials are what this agent shows and whom it believes. A handshake keeps the identity that it began with.
type credentials struct {
	changed chan struct{} // capacity 1: a review is due

	mu      sync.Mutex
	shown   *Identity
	revoked map[string]bool // serial numbers, as serialOf returns them
}

func newCredentials(id Identity) *credentials {
	return &credentials{changed: make(chan struct{}, 1), shown: &id, revoked: map[string]bool{}}
}

// identity returns what new connections show and believe. It is not to be changed.
func (c *credentials) identity() *Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown
}

func (c *credentials) isRevoked(serial string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revoked[serial]
}

// change runs f under the lock and asks for a review of the open connections.
func (c *credentials) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// SetIdentity makes id what new connections show and believe. It must be of the same mesh and name and valid now, else the
// first reason why not is returned and the one before stays. Open connections and their streams live on until their own
// certificates end, or the CA that these came from is believed no more; then they are made anew and drain.
func (m *Mesh) SetIdentity(id Identity) error {
	if err := id.Check(m.cfg.MeshID, m.cfg.Name, m.cfg.Now()); err != nil {
		return fmt.Errorf("set identity: %w", err)
	}
	if id.same(*m.creds.identity()) {
		return nil
	}
	m.creds.change(func() { m.creds.shown = &id })
	m.log.Info("identity replaced", "serial", id.Serial(), "until", id.Expires())
	return nil
}

// Revoke refuses from now on the certificates with these serial numbers, in hexadecimal as openssl x509 -serial prints
// them, and closes their connections within a second. A revocation is for as long as this process lives, and known to no
// other agent. What is no serial number is left out and returned as an error; the others count.
func (m *Mesh) Revoke(serials []string) error {
	var errs []error
	var added []string
	for _, s := range serials {
		serial, err := ParseSerial(s)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("revoke: %w", err))
		case !m.creds.isRevoked(serial):
			added = append(added, serial)
		}
	}
	if len(added) > 0 {
		m.creds.change(func() {
			for _, s := range added {
				m.creds.revoked[s] = true
			}
		})
		m.log.Info("certificates revoked", "serials", added)
	}
	return errors.Join(errs...)
}

// serialOf returns the serial number of c in upper-case hexadecimal, as openssl prints it.
func serialOf(c *x509.Certificate) string { return formatSerial(c.SerialNumber) }

func formatSerial(n *big.Int) string {
	s := fmt.Sprintf("%X", n)
	if len(s)%2 == 1 {
		s = "0" + s
	}
	return s
}

// maxSerial is the most hexadecimal digits of a serial number: RFC 5280 (4.1.2.2) allows 20 octets.
const maxSerial = 40

// ParseSerial reads a serial number in the forms in which tools print it: with "serial=", "0x" or colons. It returns upper-case
// hexadecimal, as openssl prints it.
func ParseSerial(s string) (string, error) {
	digits := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(s), "serial="), "0x")
	digits = strings.ReplaceAll(digits, ":", "")
	if digits == "" || len(digits) > maxSerial || strings.Trim(digits, "0123456789abcdefABCDEF") != "" {
		return "", fmt.Errorf("%q is no serial number in hexadecimal", clip(s))
	}
	n, _ := new(big.Int).SetString(digits, 16) // only digits are left
	return formatSerial(n), nil
}

// reviewAll looks at the certificates of the open connections, now and then and when credentials change.
func (m *Mesh) reviewAll() {
	tick := time.NewTicker(reviewEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.creds.changed:
		case <-m.ctx.Done():
			return
		}
		for _, pc := range m.table.all() {
			m.review(pc, m.cfg.Now())
		}
	}
}

// review closes pc if its certificate is revoked, retires it if that has ended or is believed no more, and makes it anew a
// while before. Only reviewAll calls it.
func (m *Mesh) review(pc *peerConn, now time.Time) {
	id := m.creds.identity()
	if pc.trust != id && issuer(id.CAs, pc.cert) != nil {
		pc.trust = id
	}
	switch {
	case m.creds.isRevoked(serialOf(pc.cert)):
		m.table.distrust(pc.cert, pc.name)
		ref := refuseRevoked(pc.cert)
		m.refusals.add(pc.qc.RemoteAddr(), pc.name, ref)
		pc.close(codeRefused+quic.ApplicationErrorCode(ref.reason), ref.text)
	case pc.trust != id:
		m.retire(pc, "the CA of its certificate is believed no more")
	case now.After(pc.until):
		m.retire(pc, "the certificate of the connection has ended")
	case pc.dialed && !pc.renewed && pc.made.Before(pc.until.Add(-renewAhead)) && now.After(pc.until.Add(-renewAhead)):
		pc.renewed = true
		m.wg.Go(func() {
			if _, err := m.dial(m.ctx, pc.about.quic, pc.name); err != nil {
				m.log.Debug("connection is not made anew", "peer", pc.name, "err", err)
			}
		})
	}
}

func refuseRevoked(c *x509.Certificate) *refusedError {
	return refusef(reasonRevoked, "the certificate with serial %s is revoked", serialOf(c))
}

// retire takes pc from those that new streams go to, and lets it drain.
func (m *Mesh) retire(pc *peerConn, why string) {
	if m.table.retire(pc, why) {
		m.log.Info("connection drains", "peer", pc.name, "reason", why)
		m.notify(pc.name)
	}
}

// pinned is what one handshake with a dialer began with. It rides in the connection's context.
type pinned struct {
	id      *Identity
	offered []string // protocols of the dialer; set while its hello is read
}

type pinnedKey struct{}

func (m *Mesh) pin(ctx context.Context) context.Context {
	return context.WithValue(ctx, pinnedKey{}, &pinned{id: m.creds.identity()})
}

func pinnedOf(ctx context.Context) *pinned {
	p, _ := ctx.Value(pinnedKey{}).(*pinned)
	return p
}
