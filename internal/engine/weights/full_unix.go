//go:build unix

package weights

import (
	"errors"
	"syscall"

	"github.com/fulgur-rl/fulgur"
)

// diskKind tells a full disk from other failures.
func diskKind(err error) fulgur.Kind {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fulgur.KindExhausted
	}
	return fulgur.KindOf(err)
}
