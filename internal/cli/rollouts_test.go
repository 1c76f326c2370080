package cli

import "testing"

func TestQuotedKeepsAnglesAndEscapesControls(t *testing.T) {
	if got, want := quoted("<tool_call>{\"a\": 1 && 2}\n\x1b[2J"), `"<tool_call>{\"a\": 1 && 2}\n\u001b[2J"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
