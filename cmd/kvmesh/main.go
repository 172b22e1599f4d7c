// Command kvmesh routes LLM requests to the engine that holds most of their prompt in its KV cache, without a central
// router: one agent beside each engine, any agent takes any request. Each subcommand has a file of its own.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
)

// cli is the whole command line. Every flag can also be given in the environment, as KVMESH_ and its name in capitals
// with underscores.
type cli struct {
	Agent     agentCmd         `cmd:"" help:"Run an agent beside one or more engines."`
	Status    statusCmd        `cmd:"" help:"Print the mesh as an agent sees it."`
	Explain   explainCmd       `cmd:"" help:"Say what would happen to a request, and why, without sending it."`
	GossipKey gossipKeyCmd     `cmd:"" name:"gossip-key" help:"Show or rotate the key of a mesh's gossip."`
	Policy    policyCmd        `cmd:"" help:"Show or change the routing policy of the whole mesh."`
	Cordon    cordonCmd        `cmd:"" help:"Keep new requests from an engine, or from all engines of an agent."`
	Uncordon  uncordonCmd      `cmd:"" help:"Lift a cordon."`
	Drain     drainCmd         `cmd:"" help:"Cordon, and wait until nothing runs there any more."`
	Revoke    revokeCmd        `cmd:"" help:"Have the whole mesh refuse a certificate, by its serial number."`
	Geometry  geometryCmd      `cmd:"" help:"Change the size of all digests."`
	Scheme    schemeCmd        `cmd:"" help:"Change how the prompts of a model are keyed."`
	Raft      raftCmd          `cmd:"" help:"Show or recover the group that decides about policy, cordons and revoked certificates."`
	Cert      certCmd          `cmd:"" help:"Make the certificate authority, agent certificates and the gossip key of a mesh."`
	Demo      demoCmd          `cmd:"" help:"Run a whole mesh with simulated engines on this machine and compare it with round robin."`
	Simulate  simulateCmd      `cmd:"" help:"Simulate a mesh in virtual time and compare its decisions with an oracle's and with other routers'."`
	Bench     benchCmd         `cmd:"" help:"Measure what a mesh costs on this machine."`
	Version   kong.VersionFlag `help:"Print the version."`

	Simengine simengineCmd `cmd:"" help:"Run a simulated engine: the stand-in for vLLM, SGLang or TensorRT-LLM."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, but for an agent
	var c cli
	var faults problems
	if len(os.Args) == 1 {
		os.Args = append(os.Args, "--help")
	}
	k := kong.Parse(&c,
		kong.Name("kvmesh"),
		kong.Description("Routes LLM requests to the engine that already holds their prompt in its KV cache."),
		kong.DefaultEnvars("KVMESH"),
		kong.Configuration(faults.load),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Bind(&faults),
		kong.Vars{"version": version()},
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err := k.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "kvmesh:", err)
		os.Exit(1)
	}
}

// version is the version of the module that this binary was built from, with its revision.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version + " " + info.GoVersion
}
