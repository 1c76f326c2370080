// Package fulgur defines the nouns of Fulgur, a system that trains LLM agents
// with reinforcement learning through the harness they are deployed with: runs,
// rollouts, attempts, calls, events, messages, endpoints, credentials, samples.
//
// The package imports the standard library only, does no I/O, reads no clock,
// and holds the rules that belong to the nouns themselves: which state changes
// are legal, when two messages are the same, what an error's kind means. Every
// type that crosses two of the wings (gateway, controller, trainer) is here.
package fulgur
