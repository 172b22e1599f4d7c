// Package simengine is a simulated inference engine: the stand-in for vLLM, SGLang, TensorRT-LLM and llama.cpp in tests,
// the demo and benchmarks. It computes nothing, but behaves like the real servers wherever a router can notice, and is meant to
// be no easier to live with than they are. It parses, renders and hashes by itself and imports nothing of kvmesh, so
// that a shared mistake cannot hide: it is the twin of the code under test.
//
// New returns an engine that holds no goroutine and no socket. Handler serves it under any http.Server, Serve runs a
// server and the KV event sockets until its context ends. Time is taken only from package time, so the whole engine
// runs in a testing/synctest bubble. Restart begins another life of the process behind the same ports.
//
// # Facts reproduced
//
// HTTP: the routes, error bodies, model lists, metrics and guarded paths of each kind; stream headers flushed before the
// request is even queued; the role chunk that comes only with the first token; one event per token; usage in a chunk
// without choices; idle connections closed after 5 s. vLLM is held to captures of 0.32.0 (testdata/vllm), key by key: it
// writes null for token ids that were not asked for, repeats the prompt's ids for every choice, gives them away with an
// echo, makes chunks with ids and nothing else where a parser swallows a token, loses the echoed prompt when ids are asked
// for, and stamps its fingerprint on the last chunk, be it of a choice or of usage. SGLang refuses ids in chat streams,
// leaves cached tokens out at 0, ends all choices after the last, serves its model under any name, and drops tools at
// tool_choice "none". TensorRT-LLM refuses unknown fields and leaves nulls out of chat chunks only. In Messages, input
// tokens are those that had nothing to do with the cache. vLLM leaves Claude Code's billing header out of the system text,
// SGLang does not.
//
// Prompts: the chat templates are the kinds that break prefix reuse in practice: thoughts that vanish, system text that
// moves, a date on top, tools before or after the system text.
//
// Cache: full blocks under chained hashes; the last prompt token is always computed; blocks are usable after their
// prefill, so equal prompts at the same time store copies; blocks of running requests are pinned and are released tail
// first when they end; eviction in order of release; answers stay cached but for their last token; a prefix counts only
// as far as every cache group agrees; a request that finds no block waits and holds up those behind it, one that
// decodes preempts the youngest. A host tier can keep what the GPU evicts: vLLM tells of it by hash alone, SGLang in
// full, and a hit loads it back.
//
// KV events: one batch a step, removed before stored, every physical copy reported, tokens of blocks that a window skips;
// nothing from an idle vLLM, not even that its cache was cleared; SGLang's one event a page and AllBlocksCleared at once
// when it starts and is flushed, its wire hashes bit by bit, vLLM's seeded ones; ZMQ PUB and replay over ZMTP 3.0 in the
// old and new reply forms, or TensorRT-LLM's polled JSON. EventFaults loses, repeats and swaps batches, cuts connections
// and forgets what could be replayed.
//
// Answers: a function of the token context alone. A context of token ids that ends in the beginning of an answer, however it
// was rendered, is answered with the rest of it, up to the same end and limit, so what goes on with a broken answer can be
// checked token by token. Answer tells the answer to a request without the time it takes.
//
// # The clock
//
// Prefill is first come, first served, one at a time:
// 15 ms + new/rate × (1 + (context − new/2)/65,536) × (1 + 0.004 × decoding). Decode gives every decoding request a token
// each 20 ms + 0.1 ms × batch, times 1.5 while any request waits for its first token. All is divided by Speed. A request
// joins the decode batch at the next step.
//
// # For tests
//
// Resident, Blocks, Stats, SetFaults and Restart are also on the routes /sim/resident, /sim/blocks, /sim/stats, /sim/faults
// and /sim/restart, which no fault and no API key stops.
//
// # Simplified
//
// A block goes to the host tier in no time when it is evicted. There is no chunked prefill: an aborted prefill leaves
// nothing in the cache. The groups of a hybrid model share one pool with CapacityTokens for each group. SGLang's,
// TensorRT-LLM's and llama.cpp's caches are played by the same block pool without copies, evicted in order of release.
// SGLang 0.5.23 reports cached tokens also at 0, and stores a chain of pages in one event. Chunks never carry two tokens,
// as they do when a real engine's front end lags. Answers never call tools; stop strings, sampling, logprobs, priorities,
// structured output, stored responses and background responses are not there. An image is 64 tokens made from the hash
// of its URL. Time to first token is a histogram of one bucket. There is one data-parallel rank.
package simengine
