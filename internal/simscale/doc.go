// Package simscale is the scale model: what agents tell each other in meshes that are too large to be run whole. Every agent
// tells with the code of a real one, a few hear with it, into a real view and index, and between them bytes are counted as
// they would be on the wire. It runs in fake time, and is for benchmarks and checks.
package simscale
