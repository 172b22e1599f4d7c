package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
)

type geometryCmd struct {
	Set      geometrySetCmd      `cmd:"" help:"Change the bits and hashes of all digests, in two phases. Only a change to fewer bits needs this: more are taken by themselves."`
	Rollback geometryRollbackCmd `cmd:"" help:"Take back the change that is under way."`
}

type geometrySetCmd struct {
	agentFlags
	Bits   uint64 `arg:"" help:"Bits of a digest, a power of two: ten for each prompt key of the largest engine."`
	Hashes uint64 `help:"Bits that stand for a key." default:"5"`
}

// Run begins a change.
func (c *geometrySetCmd) Run(ctx context.Context) error {
	query := url.Values{"step": {"begin"}, "bits": {strconv.FormatUint(c.Bits, 10)}, "hashes": {strconv.FormatUint(c.Hashes, 10)}}
	return c.take(ctx, "/debug/geometry", query, "the change has begun; kvmesh status shows how far it is")
}

type geometryRollbackCmd struct{ agentFlags }

// Run takes a change back.
func (c *geometryRollbackCmd) Run(ctx context.Context) error {
	return c.take(ctx, "/debug/geometry", url.Values{"step": {"rollback"}}, "the change is taken back")
}

type schemeCmd struct {
	Set      schemeSetCmd      `cmd:"" help:"Key the prompts of a model by another seed or layout. For up to 30 minutes both are computed."`
	Rollback schemeRollbackCmd `cmd:"" help:"Take back the change that is under way."`
}

type schemeSetCmd struct {
	agentFlags
	Model  string `arg:"" help:"The model's canonical name, or * for all that are not named."`
	Seed   string `help:"Seed of the hash, in hexadecimal." placeholder:"HEX"`
	Layout string `help:"Layout of the model's template, as a number; by default what its engines announce." placeholder:"N"`
}

// Run begins a window.
func (c *schemeSetCmd) Run(ctx context.Context) error {
	query := url.Values{"step": {"begin"}, "model": {c.Model}, "seed": {c.Seed}, "layout": {c.Layout}}
	return c.take(ctx, "/debug/scheme", query, "both schemes are computed from now on")
}

type schemeRollbackCmd struct {
	agentFlags
	Model string `arg:"" help:"The model, as the change named it."`
}

// Run takes a change back.
func (c *schemeRollbackCmd) Run(ctx context.Context) error {
	return c.take(ctx, "/debug/scheme", url.Values{"step": {"rollback"}, "model": {c.Model}}, "the change is taken back")
}

// take has the mesh decide on a step, and says that it did.
func (f *agentFlags) take(ctx context.Context, path string, query url.Values, done string) error {
	var answer node.ChangeAnswer
	if err := f.change(ctx, path, query, "", &answer); err != nil {
		return err
	}
	fmt.Printf("%s (index %d)\n", done, answer.Index)
	return nil
}

// printChanges prints the changes of geometry and key schemes that are under way.
func printChanges(out io.Writer, s *node.AgreedStatus) {
	if g := s.Geometry; g.Phase != "" {
		fmt.Fprintf(out, "digests: from %s to %s since %s, phase %s; this agent reads those of %s\n",
			g.Current, g.Next, g.Since.UTC().Format(time.RFC3339), g.Phase, g.Read)
	}
	for _, k := range s.Schemes {
		if k.Window {
			fmt.Fprintf(out, "keys of model %s: both schemes since %s; the next finds %.0f%% of what the current one does, by %d requests of this agent\n",
				k.Model, k.Since.UTC().Format(time.RFC3339), 100*k.Covered, k.Requests)
		}
	}
}
