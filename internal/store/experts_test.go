package store

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fulgur-rl/fulgur"
)

// R3: a call that repeats the routed experts of the turns before grows the record
// by its new rows, whether they came as NumPy's base64 or as a list.
func TestRoutedExpertsAreKeptOncePerToken(t *testing.T) {
	const row, turns, perTurn = 48, 10, 100
	rnd := rand.New(rand.NewPCG(1, 2))
	rows := make([]byte, row*perTurn*turns)
	for i := range rows {
		rows[i] = byte(rnd.UintN(60))
	}
	for name, value := range map[string]func(n int) json.RawMessage{
		"base64": func(n int) json.RawMessage {
			head := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 6, 8), }", n)
			b := append([]byte("\x93NUMPY\x01\x00\x76\x00"+head+strings.Repeat(" ", 117-len(head))+"\n"), rows[:n*row]...)
			return json.RawMessage(`"` + base64.StdEncoding.EncodeToString(b) + `"`)
		},
		"a list": func(n int) json.RawMessage {
			list := make([][]int, n)
			for i := range list {
				for _, b := range rows[i*row : (i+1)*row] {
					list[i] = append(list[i], int(b))
				}
			}
			b, _ := json.Marshal(list) // integers can't fail
			return b
		},
	} {
		c, err := newCodec()
		if err != nil {
			t.Fatal(err)
		}
		ch := &chain{}
		first, all := 0, 0
		for turn := 1; turn <= turns; turn++ {
			r := encoded(t, c, ch, &fulgur.Call{Seq: fulgur.Seq(turn), RoutedExperts: value(turn * perTurn), PromptIDs: make([]int32, turn*perTurn)})
			if all += len(r.bodies); turn == 1 {
				first = len(r.bodies)
			}
		}
		if all > first*(turns+8)+4096 { // the eighth is told against the first
			t.Errorf("%s: %d turns take %d bytes, the first %d", name, turns, all, first)
		}
	}
}
