package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// rereadEvery is the period at which the files of Config.Certs are read again. A renewal has days, and a revocation that
// must not wait is for Revoke. Files are compared by what is in them: tools that copy them keep or set times as they like.
const rereadEvery = 30 * time.Second

// folder is Config.Certs as this agent last found it.
type folder struct {
	dir   string
	taken Identity // the last one that the folder gave

	mu    sync.Mutex
	notes map[string]string // by file: why what is there is not in use
}

func newFolder(c Config) *folder {
	return &folder{dir: c.Certs, taken: c.Identity, notes: map[string]string{}}
}

// note keeps what is wrong with a file; nil is that nothing is. It reports whether that is new.
func (f *folder) note(file string, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.notes, file)
		return false
	}
	was := f.notes[file]
	f.notes[file] = strings.ReplaceAll(err.Error(), "\n", "; ")
	return was != f.notes[file]
}

// health returns what is wrong with the folder's files.
func (f *folder) health() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var notes []string
	for _, file := range slices.Sorted(maps.Keys(f.notes)) {
		notes = append(notes, f.notes[file])
	}
	return notes
}

// rereadAll reads the folder's files now and every rereadEvery.
func (m *Mesh) rereadAll() {
	for {
		m.complain("identity", m.rereadIdentity())
		m.complain(RevokedFile, m.rereadRevoked())
		if !sleep(m.ctx, rereadEvery) {
			return
		}
	}
}

// complain logs what is wrong with a file once, and keeps it for Health until it is mended.
func (m *Mesh) complain(file string, err error) {
	if m.folder.note(file, err) {
		m.log.Warn("file of the certificate folder not taken", "dir", m.folder.dir, "err", err)
	}
}

// rereadIdentity takes the folder's identity if it is another than the folder gave last. Who writes the files writes them
// one after another, so that they may not fit together for a moment.
func (m *Mesh) rereadIdentity() error {
	id, err := LoadIdentity(m.folder.dir, m.cfg.Name)
	if err == nil && !id.same(m.folder.taken) {
		err = m.SetIdentity(id)
	}
	if err != nil {
		return fmt.Errorf("the certificate in %s is not taken, the one from before is in use: %w", m.folder.dir, err)
	}
	m.folder.taken = id
	return nil
}

func (m *Mesh) rereadRevoked() error {
	serials, err := LoadRevoked(filepath.Join(m.folder.dir, RevokedFile))
	if err == nil {
		err = m.Revoke(serials)
	}
	if err != nil {
		return fmt.Errorf("not all of %s in %s is revoked: %w", RevokedFile, m.folder.dir, err)
	}
	return nil
}

// maxRevokedFile bounds what is read of a list of serial numbers: some 10,000.
const maxRevokedFile = 1 << 20

// LoadRevoked reads serial numbers, one a line; what follows one on its line, empty lines and those that begin with '#' are
// skipped. A file that is not there has none. It leaves it to Revoke to say what is no serial number.
func LoadRevoked(file string) ([]string, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Size() > maxRevokedFile {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", file, info.Size(), maxRevokedFile)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var serials []string
	for line := range bytes.Lines(b) {
		if fields := bytes.Fields(line); len(fields) > 0 && fields[0][0] != '#' {
			serials = append(serials, string(fields[0]))
		}
	}
	return serials, nil
}

// AddRevoked adds serial numbers to file, each with a comment, and returns those that were not there yet.
func AddRevoked(file, comment string, serials ...string) ([]string, error) {
	known, err := LoadRevoked(file)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	seen := map[string]bool{}
	for _, s := range known {
		if serial, err := ParseSerial(s); err == nil {
			seen[serial] = true
		}
	}
	var added []string
	for _, s := range serials {
		serial, err := ParseSerial(s)
		if err != nil {
			return nil, err
		}
		if !seen[serial] {
			seen[serial] = true
			added = append(added, serial)
			b = fmt.Appendf(b, "%s # %s\n", serial, comment)
		}
	}
	if len(added) == 0 {
		return nil, nil
	}
	return added, writeFile(file, b, 0o644)
}
