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
	h := hasher{Hash: sha256.New(), buf: make([]byte, 0, 1<<13)}
	for i := range samples {
		s := &samples[i]
		h.number(uint64(len(s.Tokens)))
		for j := range s.Tokens {
			on := uint64(0)
			if s.Mask[j] {
				on = 1
			}
			h.number(uint64(uint32(s.Tokens[j]))<<32 | uint64(math.Float32bits(s.LogProbs[j])))
			h.number(uint64(s.Versions[j])<<1 | on)
		}
		for _, row := range s.Experts {
			h.number(uint64(len(row)))
			for _, x := range row {
				h.number(uint64(x))
			}
		}
	}
	h.flush()
	return hex.EncodeToString(h.Sum(nil))
}

type hasher struct {
	hash.Hash
	buf []byte
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
