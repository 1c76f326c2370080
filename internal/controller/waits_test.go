package controller

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// That agents wait is news once, also where the runner does not say why.
func TestWaitingIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		c := &Controller{log: slog.New(slog.DiscardHandler), o: Options{Run: "calc", Tell: func(s string) { told = append(told, s) }}}
		for range 5 {
			c.tellWaits(2, "")
			time.Sleep(2 * waitsEvery)
		}
		c.tellWaits(2, "a quota")
		c.tellWaits(0, "")
		if len(told) != 3 || told[0] != "2 agents of run calc wait for room: the runner does not say why" {
			t.Errorf("told %q", told)
		}
	})
}
