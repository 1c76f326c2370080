package embedded

import (
	"testing"

	"github.com/fulgur-rl/fulgur/internal/engine"
	"github.com/fulgur-rl/fulgur/internal/engine/enginetest"
)

func TestConformance(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) (engine.Engine, engine.Generator) {
		e := newSmall(t, Options{Threads: 2})
		return e, e
	})
}
