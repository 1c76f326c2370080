package fulgur

import (
	"errors"
	"strings"
)

// A Kind classifies a failure. Programs branch on the kind, people read the
// message. The set is closed: each kind has one HTTP status and one retry rule.
type Kind string

// The kinds.
const (
	KindInternal    Kind = "internal"     // a bug or a broken dependency; 500, do not retry
	KindInvalid     Kind = "invalid"      // the caller sent something wrong; 400, do not retry
	KindDenied      Kind = "denied"       // no or a wrong credential; 401, do not retry
	KindForbidden   Kind = "forbidden"    // a credential that is good, but not for this; 403
	KindNotFound    Kind = "not_found"    // no such run, rollout, attempt, call or model; 404
	KindConflict    Kind = "conflict"     // the state moved on; read again, then decide; 409
	KindGone        Kind = "gone"         // the attempt has ended; 410, do not retry
	KindTooLarge    Kind = "too_large"    // a body, prompt or file over its limit; 413
	KindUnavailable Kind = "unavailable"  // paused, draining, overloaded, no endpoint; 503, retry
	KindUpstream    Kind = "upstream"     // a model server failed; 502, retry
	KindTimeout     Kind = "timeout"      // a deadline passed; 504, retry
	KindExhausted   Kind = "exhausted"    // disk, memory, ports or processes ran out; 507
	KindCanceled    Kind = "canceled"     // the caller left or asked to stop
	KindUnsupported Kind = "unsupported"  // asked for something that is not offered; 400
	KindContextFull Kind = "context_full" // the prompt does not fit the model's context; 400
)

// Error is the error that crosses package boundaries.
type Error struct {
	Kind Kind
	Op   string // operation and subject: "open attempt of rollout r42"
	Msg  string // what a stranger may read; says what to do next
	Err  error  // cause, for logs and errors.Is; never shown to a remote caller
}

// Error formats the whole chain, for logs and terminals.
func (e *Error) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{e.Op, e.Msg} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	switch {
	case e.Err != nil:
		parts = append(parts, e.Err.Error())
	case e.Msg == "":
		parts = append(parts, string(e.Kind))
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same kind with nothing else
// set, so that errors.Is(err, &Error{Kind: KindNotFound}) asks for the kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Msg == "" && t.Err == nil && t.Kind == e.Kind
}

// KindOf returns the kind of the outermost *Error in err's tree, KindInternal
// for any other error, and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) && e.Kind != "" {
		return e.Kind
	}
	return KindInternal
}

// PublicMessage returns what a remote caller may read of err: the outermost
// message, or the kind's name if there is none.
func PublicMessage(err error) string {
	var e *Error
	if errors.As(err, &e) {
		if e.Msg != "" {
			return e.Msg
		}
		return string(e.Kind)
	}
	return "internal error"
}

// HTTPStatus returns the status code that goes with a kind.
func (k Kind) HTTPStatus() int {
	switch k {
	case KindInvalid, KindUnsupported, KindContextFull:
		return 400
	case KindDenied:
		return 401
	case KindForbidden:
		return 403
	case KindNotFound:
		return 404
	case KindConflict:
		return 409
	case KindGone:
		return 410
	case KindTooLarge:
		return 413
	case KindCanceled:
		return 499
	case KindUpstream:
		return 502
	case KindUnavailable:
		return 503
	case KindTimeout:
		return 504
	case KindExhausted:
		return 507
	}
	return 500
}

// Retryable says whether the same request may succeed later.
func (k Kind) Retryable() bool {
	return k == KindUnavailable || k == KindUpstream || k == KindTimeout
}

// E returns an *Error of its four parts.
func E(kind Kind, op, msg string, err error) *Error {
	return &Error{Kind: kind, Op: op, Msg: msg, Err: err}
}
