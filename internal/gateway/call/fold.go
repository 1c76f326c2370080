package call

// Fold drops what of Body is there twice, Prompt, Messages and Tools, while a call
// waits: thousands wait at once. read is what the request was read with.
func (r *Request) Fold(read func(body []byte) (*Request, error)) {
	r.Prompt, r.Messages, r.Tools, r.read = nil, nil, nil, read
}

// Unfold brings back what Fold dropped. Whoever needs it asks first: who relays Body
// does not.
func (r *Request) Unfold() {
	if r.read == nil {
		return
	}
	if again, err := r.read(r.Body); err == nil { // the same bytes were read before
		r.Prompt, r.Messages, r.Tools = again.Prompt, again.Messages, again.Tools
	}
	r.read = nil
}
