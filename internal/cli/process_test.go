package cli

import "testing"

// A second interrupt kills what still runs, and nothing that has ended.
func TestForced(t *testing.T) {
	t.Parallel()
	var f forced
	var killed []string
	f.add(func() { killed = append(killed, "one") })
	f.add(func() { killed = append(killed, "two") })()
	f.run()
	if len(killed) != 1 || killed[0] != "one" {
		t.Errorf("killed %q, want one", killed)
	}
}
