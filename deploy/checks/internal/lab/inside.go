package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// insideName is the first argument of a program where it runs itself in namespaces of its own.
const insideName = "inside-namespaces"

// InNamespaces runs this program again in namespaces of its own, where it is the owner of the network, and copies its figures.
// Args are for what runs there. It needs iproute2 and the right to make user namespaces.
func InNamespaces(ctx context.Context, h *check.Harness, args ...string) error {
	// Not even a check that cannot run may pass: this machine does not allow namespaces of users, or has no ip.
	if _, err := IP(ctx, "-V"); err != nil {
		return fmt.Errorf("agents in network namespaces need iproute2: %w", err)
	}
	unshare := []string{"unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if _, err := (check.Command{Args: append(unshare, "true")}).Run(ctx); err != nil {
		return fmt.Errorf("agents in network namespaces need Linux and the right to make user namespaces (root has it): %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all := append(unshare, self, insideName, "--bin", h.Bin, "--dir", h.Dir, fmt.Sprint("--short=", h.Short), "--")
	out, err := check.Command{Dir: h.Root, Args: append(all, args...), Progress: os.Stderr}.Run(ctx)
	if n := h.Figures.Copy(out); n == 0 {
		return errors.Join(errors.New("nothing was measured"), err)
	}
	return err
}

// Inside is called first in main of a program that calls InNamespaces. There it runs what is to run, with the arguments of
// InNamespaces, and ends the process; elsewhere it does nothing.
func Inside(run func(ctx context.Context, h *check.Harness, args []string) error) {
	if len(os.Args) < 2 || os.Args[1] != insideName {
		return
	}
	os.Exit(inside(os.Args[2:], run))
}

func inside(args []string, run func(context.Context, *check.Harness, []string) error) (code int) {
	flags := flag.NewFlagSet(insideName, flag.ContinueOnError)
	bin := flags.String("bin", "", "kvmesh")
	dir := flags.String("dir", "", "for logs")
	short := flags.Bool("short", false, "less of it")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := os.Getwd()
	if err != nil {
		return 1
	}
	h := &check.Harness{Root: root, Bin: *bin, Dir: *dir, Short: *short, Figures: check.NewFigures(os.Stdout), Ports: check.NewPorts()}
	if err := run(ctx, h, flags.Args()); err != nil {
		h.Figures.Broken("namespaces", err)
	}
	return 0
}
