package agreed

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/raft"
)

// guard stands between raft and its stores. Raft panics where a store fails at what it cannot do without, and bbolt panics
// on a damaged file; either would end the agent, which must go on routing. So the first failure is told to onFault, and the
// goroutine of raft that met it ends there: nothing is voted or acknowledged after a write that is not on disk. Its
// owner then shuts raft down.
type guard struct {
	logs    raft.LogStore
	stable  raft.StableStore
	once    sync.Once
	onFault func(error)
}

var (
	_ raft.LogStore    = (*guard)(nil)
	_ raft.StableStore = (*guard)(nil)
)

var errDamaged = errors.New("data folder is damaged")

// do runs op, and turns a panic or a fault of a mapped page into an error.
func (g *guard) do(op func() error) error {
	err := survive(op)
	if err != nil && !isMissing(err) {
		g.once.Do(func() { g.onFault(err) })
	}
	return err
}

// must is do for what raft panics about: it does not return after a failure.
func (g *guard) must(op func() error) error {
	err := g.do(op)
	if err != nil && !isMissing(err) {
		runtime.Goexit()
	}
	return err
}

// isMissing reports whether a store said that there is no such entry, which raft asks about often.
func isMissing(err error) bool {
	return errors.Is(err, raft.ErrLogNotFound) || err.Error() == "not found" // as raft itself compares it
}

// survive runs op and returns its error, or its panic as one. A file that was cut below what is mapped faults on access.
func survive(op func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return op()
}

// FirstIndex implements raft.LogStore.
func (g *guard) FirstIndex() (i uint64, err error) {
	err = g.do(func() error { i, err = g.logs.FirstIndex(); return err })
	return i, err
}

// LastIndex implements raft.LogStore.
func (g *guard) LastIndex() (i uint64, err error) {
	err = g.do(func() error { i, err = g.logs.LastIndex(); return err })
	return i, err
}

// GetLog implements raft.LogStore. Raft asks for entries outside of the log, but a hole within it is damage.
func (g *guard) GetLog(index uint64, log *raft.Log) error {
	return g.must(func() error {
		err := g.logs.GetLog(index, log)
		if err == nil || !isMissing(err) {
			return err
		}
		first, e1 := g.logs.FirstIndex()
		last, e2 := g.logs.LastIndex()
		if e := errors.Join(e1, e2); e != nil {
			return e
		}
		if first <= index && index <= last {
			return fmt.Errorf("%w: entry %d of its log is missing", errDamaged, index)
		}
		return err
	})
}

// StoreLog implements raft.LogStore.
func (g *guard) StoreLog(log *raft.Log) error {
	return g.do(func() error { return g.logs.StoreLog(log) })
}

// StoreLogs implements raft.LogStore.
func (g *guard) StoreLogs(logs []*raft.Log) error {
	return g.do(func() error { return g.logs.StoreLogs(logs) })
}

// DeleteRange implements raft.LogStore.
func (g *guard) DeleteRange(from, to uint64) error {
	return g.do(func() error { return g.logs.DeleteRange(from, to) })
}

// Set implements raft.StableStore.
func (g *guard) Set(key, val []byte) error {
	return g.must(func() error { return g.stable.Set(key, val) })
}

// Get implements raft.StableStore.
func (g *guard) Get(key []byte) (val []byte, err error) {
	err = g.must(func() error { val, err = g.stable.Get(key); return err })
	return val, err
}

// SetUint64 implements raft.StableStore.
func (g *guard) SetUint64(key []byte, val uint64) error {
	return g.must(func() error { return g.stable.SetUint64(key, val) })
}

// GetUint64 implements raft.StableStore.
func (g *guard) GetUint64(key []byte) (val uint64, err error) {
	err = g.must(func() error { val, err = g.stable.GetUint64(key); return err })
	return val, err
}

// isolate runs f in a goroutine of its own, since a guard ends the one that it is called from.
func isolate(f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errors.New("a store failed")
		defer func() { result <- err }()
		err = survive(f)
	}()
	return <-result
}
