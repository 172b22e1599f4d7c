package mesh

import (
	"context"
	"log"
	"log/slog"
	"strings"
)

// memberlistLogger returns a logger whose lines, "[LEVEL] memberlist: text", become records of that level. What
// memberlist calls an error is often a peer that went away: it becomes a warning.
func memberlistLogger(l *slog.Logger) *log.Logger { return log.New(lineWriter{l}, "", 0) }

type lineWriter struct{ log *slog.Logger }

// Write implements io.Writer for single lines.
func (w lineWriter) Write(b []byte) (int, error) {
	level, text := splitLevel(strings.TrimSpace(string(b)))
	w.log.Log(context.Background(), level, strings.TrimPrefix(text, "memberlist: "), "from", "memberlist")
	return len(b), nil
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
