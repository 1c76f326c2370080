package sample

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"

	"github.com/fulgur-rl/fulgur"
)

// Hash is the SHA-256, in hex, of what samples teach: tokens, mask, log probs to
// the bit, versions and routed experts, in order. Ids are left out: a rollout that
// a crash made a run ask for again has others.
func Hash(samples []fulgur.Sample) string {
	h := newHasher()
	for i := range samples {
		s := &samples[i]
		h.number(uint64(len(s.Tokens)))
		for j := range s.Tokens {
			h.token(s.Tokens[j], s.LogProbs[j], s.Versions[j], s.Mask[j])
		}
		h.experts(s.Experts)
	}
	return h.sum()
}

// Hash is the hash of the samples, without writing them out. Routed experts count
// where they are replayed: else they teach nothing, and training doesn't read them.
func (b *Built) Hash() string {
	h := newHasher()
	for i := range b.Sequences {
		s := &b.Sequences[i]
		h.number(uint64(s.Len()))
		at := 0
		context := func(to int) {
			for ; at < to; at++ {
				h.token(s.at(at), 0, -1, false)
			}
		}
		for k := range s.Turns {
			t := &s.Turns[k]
			context(t.Start)
			t.Versions(func(from, to int, v fulgur.PolicyVersion) {
				for ; at < to; at++ {
					logp := float32(0)
					if t.LogProbs != nil {
						logp = t.LogProbs[at-t.Start]
					}
					h.token(s.at(at), logp, v, t.Trains())
				}
			})
		}
		context(s.Len())
		if b.replay {
			h.experts(s.Experts)
		}
	}
	return h.sum()
}

// at returns token j.
func (s *Sequence) at(j int) int32 {
	if j < len(s.Prompt) {
		return s.Prompt[j]
	}
	return s.Answer[j-len(s.Prompt)]
}

type hasher struct {
	hash.Hash
	buf []byte
}

func newHasher() *hasher { return &hasher{Hash: sha256.New(), buf: make([]byte, 0, 1<<13)} }

func (h *hasher) token(id int32, logp float32, v fulgur.PolicyVersion, trains bool) {
	on := uint64(0)
	if trains {
		on = 1
	}
	h.number(uint64(uint32(id))<<32 | uint64(math.Float32bits(logp)))
	h.number(uint64(v)<<1 | on)
}

func (h *hasher) experts(rows [][]uint16) {
	for _, row := range rows {
		h.number(uint64(len(row)))
		for _, x := range row {
			h.number(uint64(x))
		}
	}
}

func (h *hasher) sum() string {
	h.flush()
	return hex.EncodeToString(h.Sum(nil))
}

func (h *hasher) number(x uint64) {
	if len(h.buf)+8 > cap(h.buf) {
		h.flush()
	}
	h.buf = binary.LittleEndian.AppendUint64(h.buf, x)
}

func (h *hasher) flush() {
	h.Write(h.buf) // a hash never fails
	h.buf = h.buf[:0]
}
