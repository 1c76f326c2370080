package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// fields calls f with each field of a message: value is the bytes of a field of
// type bytes, number that of a varint. Other types are skipped.
func fields(b []byte, f func(num protowire.Number, value []byte, number uint64) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var value []byte
		var number uint64
		switch typ {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if typ != protowire.BytesType && typ != protowire.VarintType {
			continue
		}
		if err := f(num, value, number); err != nil {
			return err
		}
	}
	return nil
}

// readSampleProto reads tinker_public.SampleResponse: 1 repeated SampledSequence,
// 4 int32 prompt_cache_hit_tokens.
func readSampleProto(b []byte) (Sample, error) {
	var s Sample
	err := fields(b, func(num protowire.Number, value []byte, number uint64) error {
		switch num {
		case 1:
			q, err := readSequence(value)
			s.Sequences = append(s.Sequences, q)
			return err
		case 4:
			s.CacheHitTokens = int(int32(number))
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("reading a result: %w", err)
	}
	return s, s.check()
}

// readSequence reads SampledSequence: 1 enum stop_reason {0 stop, 1 length},
// 2 bytes tokens = int32[], 3 optional bytes logprobs = float32[], both
// little-endian.
func readSequence(b []byte) (Sequence, error) {
	q := Sequence{StopReason: StopReasonStop} // an enum's zero is not sent
	err := fields(b, func(num protowire.Number, value []byte, number uint64) error {
		switch num {
		case 1:
			switch number {
			case 0:
			case 1:
				q.StopReason = StopReasonLength
			default:
				q.StopReason = fmt.Sprint(number)
			}
		case 2:
			if len(value)%4 != 0 {
				return fmt.Errorf("%d bytes of int32 tokens", len(value))
			}
			q.Tokens = make([]int32, len(value)/4)
			for i := range q.Tokens {
				q.Tokens[i] = int32(binary.LittleEndian.Uint32(value[4*i:]))
			}
		case 3:
			if len(value)%4 != 0 {
				return fmt.Errorf("%d bytes of float32 log probs", len(value))
			}
			q.LogProbs = make([]float32, len(value)/4)
			for i := range q.LogProbs {
				q.LogProbs[i] = math.Float32frombits(binary.LittleEndian.Uint32(value[4*i:]))
			}
		}
		return nil
	})
	return q, err
}
