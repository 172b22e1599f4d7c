package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// harness is what all checks share.
type harness struct {
	root    string // of the repository
	bin     string // kvmesh
	dir     string // logs and files of this run; kept when something failed
	short   bool
	figures *figures
	ports   *ports
}

func newHarness(short bool) (*harness, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	h := &harness{root: root, bin: filepath.Join(root, "bin", "kvmesh"), short: short, figures: newFigures(os.Stdout), ports: newPorts()}
	for _, file := range []string{h.bin, filepath.Join(root, "go.mod")} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("run this through deploy/checks/serve: %w", err)
		}
	}
	h.dir, err = os.MkdirTemp("", "kvmesh-checks-")
	return h, err
}

// close sums up: an error when a figure fell short.
func (h *harness) close() error {
	if failed := h.figures.failed(); len(failed) > 0 {
		return fmt.Errorf("%d of %d figures fall short: %s; logs of the processes are in %s",
			len(failed), h.figures.total, strings.Join(failed, ", "), h.dir)
	}
	h.say("all %d figures keep their bounds", h.figures.total)
	return os.RemoveAll(h.dir)
}

// say tells whoever watches what is going on.
func (h *harness) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// process is a running child. It is ended by its id, and at the latest with the context that it was started under.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string        // file
	done chan struct{} // closed when it has ended
}

// start runs kvmesh with args. Its output is added to a log file that bears its name.
func (h *harness) start(ctx context.Context, dir, name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(ctx, h.bin, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = cleanEnv()
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in its log, and seen by what it no longer answers
		_ = log.Close()
	}()
	return p, nil
}

// cleanEnv is the environment without what would configure kvmesh.
func cleanEnv() []string {
	var out []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KVMESH_") {
			out = append(out, v)
		}
	}
	return out
}

// signal sends a signal to this process alone.
func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	return nil
}

// kill ends the process at once, stopped or not, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// ended reports whether the process has ended, and how its log ends.
func (p *process) ended() (lastWords string, ended bool) {
	select {
	case <-p.done:
	default:
		return "", false
	}
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error(), true
	}
	return tail(string(log), 300), true
}

// command is a tool that runs to its end.
type command struct {
	dir  string
	args []string // the first is the program
	env  []string // added to the environment
	log  string   // file that keeps its whole output; "" for none
}

// run returns the command's standard output. When ctx ends, the command and what it started are told to end too: it has
// a process group of its own.
func (c command) run(ctx context.Context) (stdout string, err error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	var out bytes.Buffer
	var all sharedBuffer
	cmd.Dir, cmd.Env = c.dir, append(cleanEnv(), c.env...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &all), &all
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if c.log != "" {
		err = errors.Join(err, os.WriteFile(c.log, all.buf.Bytes(), 0o600))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w; it ended with: %s", strings.Join(c.args, " "), err, tail(all.buf.String(), 600))
	}
	return out.String(), err
}

// sharedBuffer takes the two outputs of a process, which are copied at the same time. It is read after the process's
// end. The buffer is not embedded: its ReadFrom would go past the lock.
type sharedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// tail returns the last n bytes of s, in one line.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	return strings.ReplaceAll(s[max(0, len(s)-n):], "\n", " | ")
}

// await calls ok every period until it is true.
func await(ctx context.Context, limit time.Duration, what string, ok func() bool) error {
	const period = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait %v for %s: %w", limit, what, ctx.Err())
		case <-time.After(period):
		}
	}
	return nil
}
