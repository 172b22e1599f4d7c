package agreed

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// The names in a data folder.
const (
	idFile       = "raft.id"
	foundingFile = "founding.json"
	stateFile    = "state.json"
	recoveryFile = "recovered"
	logFile      = "raft.db"
)

const (
	folderMode = 0o700
	fileMode   = 0o600
	// lockTimeout is how long to wait for another process that has the log open: one that is just ending.
	lockTimeout = 2 * time.Second
	// snapshotsKept besides the newest, one for the case that it cannot be read.
	snapshotsKept = 2
)

// writeFile puts data at path so that after a crash either the old file is there or the new one.
func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// prepareFolder makes the folder, and removes what a crash within writeFile left.
func prepareFolder(folder string) error {
	if err := os.MkdirAll(folder, folderMode); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(folder, "*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// readBounded returns the file's bytes, nil where there is none, and an error where it has more than limit.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, err
}

var validRaftID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// loadID returns the raft id in folder, and makes one where there is none. It is never derived of a name or an address:
// a voter that lost its log must not vote as the one that it was.
func loadID(folder string, write func(string, []byte) error) (string, error) {
	path := filepath.Join(folder, idFile)
	data, err := readBounded(path, 1<<10)
	if err != nil {
		return "", fmt.Errorf("read raft id: %w", err)
	}
	if id := string(bytes.TrimSpace(data)); data != nil {
		return id, check(validRaftID.MatchString(id), "raft id in %s is damaged: move the folder away, and this agent joins as a new voter", path)
	}
	id := randomID()
	if err := write(path, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("write raft id: %w", err)
	}
	return id, nil
}

// randomID returns 128 random bits.
func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// encodeFile returns a state file: the hash of the state in hexadecimal, a line feed, and the state.
func encodeFile(h *held) []byte {
	return fmt.Appendf(nil, "%x\n%s", h.mark.Hash, h.raw)
}

// decodeFile reads a state file, and refuses one whose bytes are not those that were written.
func decodeFile(data []byte) (*held, error) {
	sum, raw, _ := bytes.Cut(data, []byte("\n"))
	if got := sha256.Sum256(raw); string(sum) != hex.EncodeToString(got[:]) {
		return nil, errors.New("state file is damaged: its hash differs")
	}
	return parseHeld(raw)
}

// loadState returns the state in folder; nil where there is none.
func loadState(folder string) (*held, error) {
	const head = 2*sha256.Size + 1
	data, err := readBounded(filepath.Join(folder, stateFile), MaxState+head)
	if data == nil || err != nil {
		return nil, err
	}
	return decodeFile(data)
}

// stores are where raft keeps what must survive.
type stores struct {
	logs   raft.LogStore
	stable raft.StableStore
	snaps  raft.SnapshotStore
	close  func() error
}

// openStores opens the raft log in folder. Damaged files make bbolt panic, so callers must guard it.
func openStores(folder string) (*stores, error) {
	db, err := boltdb.New(boltdb.Options{
		Path:                    filepath.Join(folder, logFile),
		BoltOptions:             &bbolt.Options{Timeout: lockTimeout},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open raft log: %w", err)
	}
	snaps, err := raft.NewFileSnapshotStore(folder, snapshotsKept, io.Discard)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open snapshots: %w", err), db.Close())
	}
	return &stores{db, db, snaps, db.Close}, nil
}
