package mesh

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// withFolder gives an agent to come a folder with its files.
func (w *world) withFolder(c Config) Config {
	w.t.Helper()
	c.Certs = w.t.TempDir()
	if err := c.Identity.Write(c.Certs); err != nil {
		w.t.Fatal(err)
	}
	if err := WriteGossipKeys(filepath.Join(c.Certs, GossipKeyFile), c.GossipKeys...); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func TestRenewedCertificateInTheFolderIsTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var log strings.Builder
		c := w.withFolder(w.config("a"))
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		a := w.run(c)
		before := a.creds.identity()
		time.Sleep(2 * rereadEvery)
		if a.creds.identity() != before {
			t.Error("the same certificate was taken anew")
		}
		renewed := mustIssue(t, w.ca, "a", 60*24*time.Hour)
		renewed.Write(c.Certs)
		file := filepath.Join(c.Certs, "a.pem")
		whole, _ := os.ReadFile(file)
		os.WriteFile(file, whole[:100], 0o644)
		time.Sleep(10 * rereadEvery)
		notes := strings.Join(a.Health(), "\n")
		if a.creds.identity() != before || !strings.Contains(notes, "is not taken, the one from before is in use") {
			t.Errorf("half a certificate: health notes %q", notes)
		}
		os.WriteFile(file, whole, 0o644)
		time.Sleep(rereadEvery + time.Second)
		if got := a.creds.identity().Serial(); got != renewed.Serial() || len(a.Health()) > 0 {
			t.Errorf("serial %s, want %s; health notes %q", got, renewed.Serial(), a.Health())
		}
		a.stop()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("half a certificate was logged %d times:\n%s", n, log.String())
		}
	})
}

func TestRevokedFileIsReadFromTheStartAndAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		stolen := mustIssue(t, w.ca, "b", time.Hour)
		c := w.withFolder(w.config("a"))
		file := filepath.Join(c.Certs, RevokedFile)
		if _, err := AddRevoked(file, "stolen", stolen.Serial()); err != nil {
			t.Fatal(err)
		}
		a := w.run(c)
		cb := w.config("b", a.QUICAddr().String())
		cb.Identity = stolen
		b := w.run(cb)
		time.Sleep(5 * time.Second)
		wantRefusal(t, b, true, "is revoked")
		cc := w.config("c", a.QUICAddr().String())
		c2 := w.run(cc)
		await(t, 5*time.Second, "c joins", connectedTo(c2, "a"))
		os.WriteFile(file, []byte("# mine\n\nnonsense\n"+strings.ToLower(cc.Identity.Serial())+" c left us"), 0o644)
		await(t, rereadEvery+2*time.Second, "c is closed", func() bool { return a.saw("down c") })
		if notes := strings.Join(a.Health(), "\n"); !strings.Contains(notes, `"nonsense" is no serial number`) {
			t.Errorf("health notes %q", notes)
		}
	})
}

func TestRevokedSerialsAreAddedOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), RevokedFile)
	os.WriteFile(file, []byte("0a1b # by hand"), 0o644)
	added, err := AddRevoked(file, "agent x", "0A:1B", "FF", "0xff")
	if err != nil || len(added) != 1 || added[0] != "FF" {
		t.Errorf("%q, %v", added, err)
	}
	b, _ := os.ReadFile(file)
	if got, want := string(b), "0a1b # by hand\nFF # agent x\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := AddRevoked(file, "agent x", "x"); err == nil {
		t.Error("no serial number was added")
	}
	os.WriteFile(file, make([]byte, maxRevokedFile+1), 0o644)
	if _, err := LoadRevoked(file); err == nil {
		t.Error("a file of any size was read")
	}
}
