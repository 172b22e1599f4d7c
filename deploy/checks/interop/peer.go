package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed peer.py
var peerScript string

// answerTime is how long a peer may take to answer a line.
const answerTime = 30 * time.Second

// peer is a process with the sockets of an engine, on libzmq.
type peer struct {
	version string // of libzmq
	pub     string // endpoint
	replay  string
	life    uint64 // upper half of its blocks
	next    uint64 // number of its next batch

	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

var errPeer = errors.New("peer does not answer")

// start starts a peer; it ends with stop or with ctx.
func (c *checks) start(ctx context.Context, args ...string) (*peer, error) {
	p := &peer{lines: make(chan string, 1)}
	p.cmd = exec.CommandContext(ctx, c.python, append([]string{"-c", peerScript}, args...)...)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start peer: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start peer: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start peer: %w", err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	words, err := p.answer(3)
	if err != nil {
		p.stop()
		return nil, err
	}
	p.version, p.pub, p.replay = words[0], words[1], words[2]
	return p, p.do("idle 0")
}

// answer waits for a line of n words after "ok".
func (p *peer) answer(n int) ([]string, error) {
	select {
	case line := <-p.lines:
		words := strings.Fields(line)
		if len(words) != n+1 || words[0] != "ok" {
			return nil, fmt.Errorf("%w: it says %q", errPeer, line)
		}
		return words[1:], nil
	case <-time.After(answerTime):
		return nil, errPeer
	}
}

// do lets the peer obey a line.
func (p *peer) do(line string) error {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return fmt.Errorf("tell peer: %w", err)
	}
	words, err := p.answer(2)
	if err != nil {
		return err
	}
	if p.life, err = strconv.ParseUint(words[0], 10, 64); err == nil {
		p.next, err = strconv.ParseUint(words[1], 10, 64)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errPeer, err)
	}
	return nil
}

// blocks calls yield with each block that the peer's engine holds.
func (p *peer) blocks(yield func(block uint64) bool) {
	for n := range p.next {
		if !yield(p.life<<32 | n + 1) {
			return
		}
	}
}

func (p *peer) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// stop ends the process as a crash does.
func (p *peer) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	for range p.lines { // until it has ended
	}
	_ = p.cmd.Wait()
}
