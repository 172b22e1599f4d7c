package mesh

import (
	"context"
	"log/slog"
	"strings"
)

// lineHandler handles memberlist's lines, "[LEVEL] memberlist: text", as records of that level. What memberlist calls
// an error is often a peer that went away: it becomes a warning.
type lineHandler struct{ slog.Handler }

// Enabled reports true: the level is known only when the line is read.
func (lineHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler for single lines.
func (h lineHandler) Handle(ctx context.Context, r slog.Record) error {
	level, text := splitLevel(strings.TrimSpace(r.Message))
	if !h.Handler.Enabled(ctx, level) {
		return nil
	}
	line := slog.NewRecord(r.Time, level, strings.TrimPrefix(text, "memberlist: "), r.PC)
	line.AddAttrs(slog.String("from", "memberlist"))
	return h.Handler.Handle(ctx, line)
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
