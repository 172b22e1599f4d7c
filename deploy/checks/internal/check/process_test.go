package check

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWholeOutputOfACommandIsKept(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	script := `for i in 1 2 3 4 5 6 7 8 9; do echo out$i; echo err$i >&2; done; exit 3`
	out, err := Command{Args: []string{"sh", "-c", script}, Log: log}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error = %v, want exit status 3", err)
	}
	if strings.Contains(out, "err") || strings.Count(out, "\n") != 9 {
		t.Errorf("stdout = %q, want the 9 lines that went there", out)
	}
	kept, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"out1", "out9", "err1", "err9"} {
		if !strings.Contains(string(kept), want+"\n") {
			t.Errorf("log has no %s: %q", want, kept)
		}
	}
}

func TestCommandEndsWithItsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	// the shell's child holds the output open: were it left alone, run would wait for it
	if _, err := (Command{Args: []string{"sh", "-c", "sleep 60 & wait"}}).Run(ctx); err == nil {
		t.Error("a command that was cut short ended well")
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("ended after %v", d)
	}
}

func TestTailIsOneLine(t *testing.T) {
	if got, want := Tail("first\nsecond\nthird\n", 12), "second | third"; got != want {
		t.Errorf("tail = %q, want %q", got, want)
	}
}
