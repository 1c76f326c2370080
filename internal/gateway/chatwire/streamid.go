package chatwire

// StreamID keeps one id over the chunks of a stream, whoever wrote them: clients
// drop chunks of another id. It is the upstream's, unless a keep-alive with our
// own went out before the upstream's first chunk.
type StreamID struct {
	Own   string // what ours is called
	id    []byte // JSON, of the upstream's chunks
	alive bool   // a keep-alive went out with ours
}

// KeepAlive notes that a chunk of ours goes out.
func (s *StreamID) KeepAlive() { s.alive = s.alive || s.id == nil }

// Relay returns an upstream's chunk as it is to go out.
func (s *StreamID) Relay(raw []byte) []byte {
	if s.alive {
		if out, err := Splice(raw, Field{Key: "id", Value: AppendString(nil, s.Own)}); err == nil {
			return out
		}
	} else if s.id == nil {
		s.id = append([]byte(nil), Get(raw, "id")...)
	}
	return raw
}

// Append appends the id of a chunk of ours, as JSON.
func (s *StreamID) Append(dst []byte) []byte {
	if len(s.id) > 0 {
		return append(dst, s.id...)
	}
	return AppendString(dst, s.Own)
}
