package mesh

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/hashicorp/memberlist"
)

// keyring is the gossip keys that this agent has now: in memberlist, which uses them, and in their file.
type keyring struct {
	ring *memberlist.Keyring
	file string // "" for none

	mu  sync.Mutex
	set keySet

	saveMu sync.Mutex // held over writing the file
}

// newKeyring begins with the config's keys. Their version is in their file, as long as that has the same keys.
func newKeyring(c Config) (*keyring, error) {
	k := &keyring{set: keySet{keys: c.GossipKeys}}
	if c.Certs != "" {
		k.file = filepath.Join(c.Certs, GossipKeyFile)
		if saved, err := loadKeySet(k.file); err == nil && saved.sum() == k.set.sum() {
			k.set.version = saved.version
		}
	}
	var err error
	k.ring, err = memberlist.NewKeyring(c.GossipKeys, c.GossipKeys[0])
	if err != nil {
		return nil, fmt.Errorf("read gossip keys: %w", err)
	}
	return k, nil
}

func (k *keyring) current() keySet {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set
}

// take replaces the keys if o is newer, and reports whether it was.
func (k *keyring) take(o offer) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(o.keys) == 0 || !newer(o, k.set.offer()) {
		return false
	}
	k.installLocked(o.keys)
	k.set = keySet{version: o.version, keys: o.keys}
	return true
}

// installLocked gives memberlist the keys. It removes keys from the end only, and adds again what was behind them:
// memberlist shares its list with whoever decrypts at the moment, and would move what follows a removed key.
func (k *keyring) installLocked(keys [][]byte) {
	has := func(keys [][]byte, key []byte) bool {
		return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
	}
	add := func() {
		for _, key := range keys {
			_ = k.ring.AddKey(key) // fails only for other sizes
		}
	}
	add()
	_ = k.ring.UseKey(keys[0]) // it is there
	for all := k.ring.GetKeys(); slices.ContainsFunc(all, func(key []byte) bool { return !has(keys, key) }); all = k.ring.GetKeys() {
		_ = k.ring.RemoveKey(all[len(all)-1]) // it is not the first: that one stays
	}
	add()
}

// save writes the keys to their file, if there is one.
func (k *keyring) save() error {
	if k.file == "" {
		return nil
	}
	k.saveMu.Lock()
	defer k.saveMu.Unlock()
	set := k.current()
	err := writeFile(k.file, appendKeySet(nil, set), 0o600)
	if err != nil {
		return fmt.Errorf("the new gossip keys are not in %s: started again, this agent has the old ones until it meets a peer: %w", k.file, err)
	}
	return nil
}

// keyVersion begins the comment that holds a set's version.
const keyVersion = "# version "

func appendKeySet(b []byte, set keySet) []byte {
	if set.version > 0 {
		b = fmt.Appendf(b, "%s%d, written by an agent; change keys with kvmesh gossip-key rotate\n", keyVersion, set.version)
	}
	for _, key := range set.keys {
		b = append(base64.StdEncoding.AppendEncode(b, key), '\n')
	}
	return b
}

func loadKeySet(file string) (keySet, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return keySet{}, err
	}
	var set keySet
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		line := bytes.TrimSpace(s.Bytes())
		if rest, ok := bytes.CutPrefix(line, []byte(keyVersion)); ok {
			digits, _, _ := bytes.Cut(rest, []byte(","))
			set.version, _ = strconv.ParseUint(string(digits), 10, 40) // what is no number is a comment
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		if err != nil || len(key) != GossipKeyBytes {
			return keySet{}, fmt.Errorf("%s: key %d is not %d bytes in base64", file, len(set.keys)+1, GossipKeyBytes)
		}
		set.keys = append(set.keys, key)
	}
	switch {
	case len(set.keys) == 0:
		return keySet{}, fmt.Errorf("%s holds no gossip key", file)
	case len(set.keys) > maxGossipKeys:
		return keySet{}, fmt.Errorf("%s holds %d gossip keys, more than %d", file, len(set.keys), maxGossipKeys)
	}
	return set, nil
}

// WriteGossipKeys writes keys to file, one in base64 on each line, readable by its owner only. The first is primary.
func WriteGossipKeys(file string, keys ...[]byte) error {
	if len(keys) == 0 {
		return errors.New("write gossip keys: there is none")
	}
	return writeFile(file, appendKeySet(nil, keySet{keys: keys}), 0o600)
}

// LoadGossipKeys reads what WriteGossipKeys or an agent wrote. Empty lines and lines that begin with '#' are skipped.
func LoadGossipKeys(file string) ([][]byte, error) {
	set, err := loadKeySet(file)
	return set.keys, err
}
