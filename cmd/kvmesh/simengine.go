package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

type simengineCmd struct {
	Listen string `help:"Address to serve on." default:"127.0.0.1:8000"`

	Kind           string   `help:"Software to imitate: ${enum}; other is llama.cpp." enum:"vllm,sglang,trtllm,other" default:"vllm"`
	Model          string   `help:"Name of the served model." default:"sim-model"`
	Alias          []string `help:"Further names of the model."`
	Template       string   `help:"Chat template: ${enum}." enum:"plain,tools-first,drops-thoughts,tools-in-last-user,dated" default:"plain"`
	AnswerTokens   int      `help:"Mean length of an answer." default:"128"`
	RetokenizeRate float64  `help:"Share of answers that are read as other tokens in the next turn." default:"0"`

	BlockTokens    int           `help:"Tokens in a KV block." default:"16"`
	CapacityTokens int64         `help:"KV cache size in tokens." default:"2048000"`
	OffloadTokens  int64         `help:"Size in tokens of a second tier in CPU memory for what the KV cache evicts, vllm and sglang only." default:"0"`
	MaxRunning     int           `help:"Most requests that run at once." default:"128"`
	PrefillRate    float64       `help:"Prefill speed in tokens/s." default:"16000"`
	Speed          float64       `help:"Divides all times: 10 is ten times faster than a real engine." default:"1"`
	CachedTokens   bool          `help:"Report cached tokens in usage, as --enable-prompt-tokens-details does." default:"true" negatable:""`
	ForceUsage     bool          `help:"End every stream with usage, as --enable-force-include-usage does."`
	ScaleOut       bool          `help:"Open vLLM's render route, as --enable-scale-out does."`
	KeepAlive      time.Duration `help:"How long an idle connection is kept." default:"5s"`
	KeyFile        string        `help:"File with the API key to ask for." placeholder:"FILE"`
	Seed           uint64        `help:"Makes block hashes, also after a restart, and injected errors repeatable; 0 draws one."`

	KVEvents         string `name:"kv-events" help:"Address that publishes KV events over ZMQ, tcp://HOST:PORT." placeholder:"ADDR"`
	KVReplay         string `name:"kv-replay" help:"Address that replays KV events." placeholder:"ADDR"`
	KVEventsEncoding string `name:"kv-events-encoding" help:"Encoding of KV events: ${enum}." enum:"map,array" default:"map"`
	KVReplayTopic    bool   `name:"kv-replay-topic" help:"Send the topic with replayed KV events, as vLLM does from 0.26 on." default:"true" negatable:""`
	EventBuffer      int    `help:"How many KV events trtllm keeps for polling; 0 is none." default:"0"`

	Fault struct {
		Refuse           bool    `help:"Reset every connection when a request arrives."`
		Unavailable      bool    `help:"Answer 503."`
		TooMany          bool    `help:"Answer 429."`
		Hang             bool    `help:"Take requests and never answer."`
		Stall            bool    `help:"Take requests for generation and never answer them."`
		HangAfterHeaders bool    `help:"Send the headers of a stream and nothing more."`
		DieAfterTokens   int     `help:"Reset every stream after that many tokens." placeholder:"N"`
		ErrorRate        float64 `help:"Share of requests that fail with 500." placeholder:"SHARE"`
		Slow             float64 `help:"Multiplies all times." placeholder:"FACTOR"`
	} `embed:"" prefix:"fault-" group:"Failure injection (POST /sim/faults changes it, and breaks the stream of KV events)"`
}

// Run serves a simulated engine until the process is told to stop.
func (c *simengineCmd) Run(ctx context.Context) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	e, err := simengine.New(config)
	if err != nil {
		return badConfig(err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	fmt.Printf("%s  simulated %s engine with model %s on http://%s\n", time.Now().Format(time.TimeOnly), c.Kind, c.Model, l.Addr())
	return e.Serve(ctx, l)
}

func (c *simengineCmd) config() (simengine.Config, error) {
	s := simengine.DefaultConfig()
	s.Kind, s.Model, s.Aliases, s.Template, s.AnswerTokens = c.Kind, c.Model, c.Alias, c.Template, c.AnswerTokens
	s.BlockTokens, s.CapacityTokens, s.MaxRunning = c.BlockTokens, c.CapacityTokens, c.MaxRunning
	s.PrefillRate, s.Speed, s.Seed = c.PrefillRate, c.Speed, c.Seed
	s.KeepAlive = c.KeepAlive
	s.CachedTokens, s.ForceIncludeUsage, s.ScaleOut = c.CachedTokens, c.ForceUsage, c.ScaleOut
	s.OffloadTokens, s.RetokenizeRate, s.EventBuffer = c.OffloadTokens, c.RetokenizeRate, c.EventBuffer
	s.KVEvents.Endpoint, s.KVEvents.ReplayEndpoint, s.KVEvents.Encoding = c.KVEvents, c.KVReplay, c.KVEventsEncoding
	s.KVEvents.ReplayTopic = c.KVReplayTopic
	s.Faults = simengine.Faults{
		Refuse: c.Fault.Refuse, Unavailable: c.Fault.Unavailable, TooMany: c.Fault.TooMany, Hang: c.Fault.Hang, Stall: c.Fault.Stall,
		HangAfterHeaders: c.Fault.HangAfterHeaders, DieAfterTokens: c.Fault.DieAfterTokens,
		ErrorRate: c.Fault.ErrorRate, Slow: c.Fault.Slow,
	}
	if c.KeyFile == "" {
		return s, nil
	}
	var err error
	s.APIKey, err = secret(c.KeyFile)
	return s, wrap("key-file", err)
}
