package sqlite_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
	"github.com/fulgur-rl/fulgur/internal/store/sqlite"
	"github.com/fulgur-rl/fulgur/internal/store/storetest"
)

// TestMain lets the test binary be the process that the kill test kills.
func TestMain(m *testing.M) {
	if path := os.Getenv("FULGUR_STORE_KILL_TEST"); path != "" {
		if err := appendForever(path); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// appendForever prints the id of each call that is acknowledged, and a sum of
// what it said: four agents, whose histories grow.
func appendForever(path string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, sqlite.New(path, sqlite.Options{}), store.Options{})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	for w := range 4 {
		id := fulgur.RolloutID(fmt.Sprintf("r%d.%d", os.Getpid(), w))
		if _, err := s.CreateRollouts(ctx, []fulgur.RolloutSpec{{ID: id, Run: fulgur.DefaultRun, Input: json.RawMessage("1")}}); err != nil {
			return err
		}
		go func() {
			for t := storetest.NewTalk(uint64(w)); ; {
				c := t.Call(id)
				err := s.AppendCall(ctx, c)
				mu.Lock()
				if err != nil {
					fmt.Println("error", err)
				} else {
					fmt.Println(c.ID, sumOf(c))
				}
				mu.Unlock()
			}
		}()
	}
	select {}
}

func sumOf(c *fulgur.Call) uint32 {
	return crc32.ChecksumIEEE(fmt.Append(nil, string(c.Request), string(c.Sent), string(c.Response), c.PromptIDs, c.SampledIDs, c.LogProbs, c.Messages))
}

// TestKillWhatWasAcknowledgedIsOnRecord kills a process that writes, with no
// warning, at random moments, again and again on one store.
func TestKillWhatWasAcknowledgedIsOnRecord(t *testing.T) {
	rounds := 3
	if os.Getenv("FULGUR_LONG") != "" {
		rounds = 50
	}
	path := filepath.Join(t.TempDir(), "s.db")
	acked := map[string]string{} // sum by call
	for round := range rounds {
		out := killed(t, path, time.Duration(rand.IntN(300))*time.Millisecond)
		for _, line := range out {
			id, sum, ok := strings.Cut(line, " ")
			if !ok || id == "error" {
				t.Fatalf("round %d: %s", round, line)
			}
			acked[id] = sum
		}
		r, err := store.Check(t.Context(), sqlite.New(path, sqlite.Options{}))
		if err != nil || !r.OK() {
			t.Fatalf("round %d: %+v, %v", round, r, err)
		}
	}
	s := storetest.Open(t, sqlite.New(path, sqlite.Options{}))
	rs, err := s.Rollouts(t.Context(), fulgur.RolloutQuery{Limit: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, r := range rs {
		calls, err := s.Calls(t.Context(), r.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			id := string(calls[i].ID)
			seen[id]++
			if sum, ok := acked[id]; ok && sum != fmt.Sprint(sumOf(&calls[i])) {
				t.Errorf("call %s is not what was recorded", id)
			}
		}
	}
	for id := range acked {
		if seen[id] != 1 {
			t.Errorf("acknowledged call %q is on record %d times", id, seen[id])
		}
	}
	if len(acked) < 10*rounds {
		t.Errorf("only %d calls were acknowledged", len(acked))
	}
	t.Logf("%d calls acknowledged in %d lives, %d on record", len(acked), rounds, len(seen))
}

// killed runs a writer on path, kills it some time after its tenth call, and
// returns the whole lines that it wrote.
func killed(t *testing.T, path string, after time.Duration) (lines []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FULGUR_STORE_KILL_TEST="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil { // a line that is cut off is of a call that may be there or not
			break
		}
		if lines = append(lines, strings.TrimSpace(line)); len(lines) == 10 {
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the process was not killed")
	}
	return lines
}
