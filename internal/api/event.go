package api

import (
	"fmt"

	"github.com/fulgur-rl/fulgur"
)

// What an attempt's credential may post in one event: an agent can fill a disk.
const (
	maxAgentEvent = 1 << 20
	maxEventType  = 256
)

// CheckAgentEvent refuses (KindTooLarge) what is too large an event for an agent.
func CheckAgentEvent(who fulgur.Identity, kind string, data []byte) error {
	switch {
	case who.Scope != fulgur.ScopeAttempt:
		return nil
	case len(kind) > maxEventType:
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("An event's type has at most %d bytes, this one has %d", maxEventType, len(kind)), nil)
	case len(data) > maxAgentEvent:
		return fulgur.E(fulgur.KindTooLarge, "", fmt.Sprintf("An agent's event has at most %d bytes of data, this one has %d", maxAgentEvent, len(data)), nil)
	}
	return nil
}
