package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// GW-15: four hundred calls are at the upstream at once, again and again, and over
// the connections of the first time.
func TestNoHiddenQueue(t *testing.T) {
	const n, rounds = 400, 5
	var arrived, opened atomic.Int64
	var conns sync.Map // by the address of their other end
	gates := make([]chan struct{}, rounds)
	for i := range gates {
		gates[i] = make(chan struct{})
	}
	h, _ := chatHouse(t, func(w http.ResponseWriter, r *http.Request) {
		if _, known := conns.LoadOrStore(r.RemoteAddr, true); !known {
			opened.Add(1)
		}
		at := arrived.Add(1) - 1
		if (at+1)%n == 0 {
			close(gates[at/n])
		}
		<-gates[at/n] // for all of them
		jsonAnswer(goodAnswer)(w, r)
	})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	defer client.CloseIdleConnections()
	for range rounds {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/openai/v1/chat/completions", strings.NewReader(hi))
				req.Header.Set("Authorization", "Bearer "+agentKey)
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
			})
		}
		wg.Wait()
	}
	if c := opened.Load(); c > 2*n {
		t.Errorf("%d connections to the upstream for %d calls of which %d are at once", c, n*rounds, n)
	}
	if calls := len(h.all()); calls != n*rounds {
		t.Errorf("%d calls on record", calls)
	}
}

// GW-24: large bodies arrive whole.
func TestLargeBodies(t *testing.T) {
	h, u := chatHouse(t, jsonAnswer(goodAnswer))
	sizes := []int{1, 8, 40}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, mb := range sizes {
		body := `{"model":"policy","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + strings.Repeat("x", mb<<20) + `"}}]}]}`
		if got := h.chat(t, agentKey, body); got.status != 200 {
			t.Errorf("%d MB: %d %.200s", mb, got.status, got.body)
		}
		if got := u.bodies[len(u.bodies)-1]; len(got) < len(body) || !json.Valid([]byte(got)) {
			t.Errorf("%d MB: upstream got %d bytes", mb, len(got))
		}
	}
}
