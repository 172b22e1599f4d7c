package mesh

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

// lineHandler handles memberlist's lines, "[LEVEL] memberlist: text", as records of that level. What memberlist calls
// an error is often a peer that went away: it becomes a warning.
//
// Anybody can make it warn, with packets that are no gossip. So a warning passes once a minute for each way to begin it,
// and the others are counted: nearly all are of packets and streams that could not be read.
type lineHandler struct {
	slog.Handler
	metrics *metrics
	warned  *warned
}

func newLineHandler(h slog.Handler, met *metrics) lineHandler {
	return lineHandler{h, met, &warned{at: map[string]time.Time{}}}
}

// Enabled reports true: the level is known only when the line is read.
func (lineHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler for single lines.
func (h lineHandler) Handle(ctx context.Context, r slog.Record) error {
	level, text := splitLevel(strings.TrimSpace(r.Message))
	if !h.Handler.Enabled(ctx, level) {
		return nil
	}
	text = strings.TrimPrefix(text, "memberlist: ")
	if level >= slog.LevelWarn && !h.warned.first(text, r.Time) {
		h.metrics.drop("bad_packet")
		return nil
	}
	line := slog.NewRecord(r.Time, level, text, r.PC)
	line.AddAttrs(slog.String("from", "memberlist"))
	return h.Handler.Handle(ctx, line)
}

// maxWarned bounds the beginnings that are remembered: memberlist has some fifty.
const maxWarned = 128

// warned is which warnings were passed lately.
type warned struct {
	mu sync.Mutex
	at map[string]time.Time // by beginning; at most maxWarned
}

// first reports whether text is the first within logEvery that begins so. When too many beginnings are remembered, no
// new one is the first.
func (w *warned) first(text string, now time.Time) bool {
	begin := text
	if i := strings.IndexAny(text, `:"'(=`); i >= 0 { // after these comes what a stranger may choose: label, address
		begin = text[:i]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.at[begin]; ok && now.Sub(t) < logEvery {
		return false
	}
	if len(w.at) >= maxWarned {
		maps.DeleteFunc(w.at, func(_ string, t time.Time) bool { return now.Sub(t) >= logEvery })
	}
	if len(w.at) >= maxWarned {
		return false
	}
	w.at[begin] = now
	return true
}

func splitLevel(line string) (slog.Level, string) {
	for prefix, level := range map[string]slog.Level{
		"[DEBUG] ": slog.LevelDebug, "[INFO] ": slog.LevelInfo, "[WARN] ": slog.LevelWarn,
		"[ERR] ": slog.LevelWarn, "[ERROR] ": slog.LevelWarn,
	} {
		if text, ok := strings.CutPrefix(line, prefix); ok {
			return level, text
		}
	}
	return slog.LevelInfo, line
}
