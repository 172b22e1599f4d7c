package agreed

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLog takes what raft logs. Raft repeats itself for as long as a peer is away, and Status says what an operator can act
// on, so all of it is debug.
type raftLog struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (l raftLog) Accept(_ string, level hclog.Level, msg string, args ...any) {
	if level >= hclog.Debug {
		l.log.Log(context.Background(), slog.LevelDebug, "raft", "what", msg, "facts", args)
	}
}

func newRaftLog(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(raftLog{log})
	return l
}
