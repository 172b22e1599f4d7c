package check

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

// Process is a running child. It is ended by its id, and at the latest with the context that it was started under.
type Process struct {
	Name string
	Done <-chan struct{} // closed when it has ended

	cmd   *exec.Cmd
	log   string // file
	group bool   // it has a process group of its own
}

// Start runs kvmesh with args. Its output is added to a log file in dir that bears its name.
func (h *Harness) Start(ctx context.Context, dir, name string, args ...string) (*Process, error) {
	return h.StartCommand(ctx, Command{Dir: h.Root, Args: append([]string{h.Bin}, args...), Log: filepath.Join(dir, name+".log")}, name)
}

// StartCommand runs any program in the background.
func (h *Harness) StartCommand(ctx context.Context, c Command, name string) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	cmd.Env = append(cleanEnv(), c.Env...)
	if c.Group {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its log, and seen by what it no longer answers
		_ = log.Close()
	}()
	return &Process{Name: name, Done: done, cmd: cmd, log: c.Log, group: c.Group}, nil
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

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to this process alone.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.Name, err)
	}
	return nil
}

// Kill ends the process at once, stopped or not, and waits for its end.
func (p *Process) Kill() {
	if p.group {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	_ = p.cmd.Process.Kill()
	<-p.Done
}

// Ended reports whether the process has ended, and how its log ends.
func (p *Process) Ended() (lastWords string, ended bool) {
	select {
	case <-p.Done:
	default:
		return "", false
	}
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error(), true
	}
	return Tail(string(log), 300), true
}

// ExitCode returns that of a process that has ended; -1 when a signal ended it.
func (p *Process) ExitCode() int {
	<-p.Done
	return p.cmd.ProcessState.ExitCode()
}

// Command is a program to run.
type Command struct {
	Dir  string
	Args []string // the first is the program
	Env  []string // added to the environment
	Log  string   // file that keeps its whole output; "" for none
	// Progress also gets what it says on standard error, as it says it; nil for nothing.
	Progress io.Writer
	// Group gives a process in the background a group of its own, so that its children end with it. Others end with this
	// program, as a terminal ends all that it started.
	Group bool
}

// Run returns the command's standard output. When ctx ends, the command and what it started are told to end too: it has
// a process group of its own.
func (c Command) Run(ctx context.Context) (stdout string, err error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	var out bytes.Buffer
	var all sharedBuffer
	cmd.Dir, cmd.Env = c.Dir, append(cleanEnv(), c.Env...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &all), &all
	if c.Progress != nil {
		cmd.Stderr = io.MultiWriter(&all, c.Progress)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if c.Log != "" {
		err = errors.Join(err, os.WriteFile(c.Log, all.buf.Bytes(), 0o600))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w; it ended with: %s", strings.Join(c.Args, " "), err, Tail(all.buf.String(), 600))
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

// Tail returns the last n bytes of s, in one line.
func Tail(s string, n int) string {
	s = strings.TrimSpace(s)
	return strings.ReplaceAll(s[max(0, len(s)-n):], "\n", " | ")
}

// Await calls ok every period until it is true.
func Await(ctx context.Context, limit time.Duration, what string, ok func() bool) error {
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
