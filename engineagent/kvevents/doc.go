// Package kvevents follows the KV events of one engine: it decodes every wire form that vLLM, SGLang and TensorRT-LLM
// have had, finds out where they come from, and keeps them whole over lost messages, reconnects and restarts.
package kvevents
