package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/store"
)

// TestKillServe is kill -9 of the gateway at random moments under load, again and
// again on one store, with clients that try again as the SDKs do: each answer that a
// client saw whole is on record once, no generation is there twice, the store opens
// without repair, and no rollout is lost.
func TestKillServe(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	t.Parallel()
	kills := 10
	if os.Getenv("FULGUR_LONG") != "" {
		kills = 50
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "s.db")
	l := &killLoad{t: t, url: "http://" + freeAddress(t), seen: map[string]string{}}
	upstream := httptest.NewServer(http.HandlerFunc(l.model))
	defer upstream.Close()
	args := []string{"serve", "--listen", strings.TrimPrefix(l.url, "http://"), "--key", "K", "--model", "m", "--store", "sqlite:" + path, "--log-level", "warn"}

	server := start(t, dir, nil, args...)
	server.says("listening on ")
	register := fmt.Sprintf(`[{"model":"m","endpoint":"%s/v1","version":1}]`, upstream.URL)
	if status, answer := ask(t, l.url+"/api/models", "K", register); status != 201 {
		t.Fatalf("registering the model: status %d: %s", status, answer)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var agents sync.WaitGroup
	for a := range 8 {
		agents.Go(func() { l.agent(ctx, a) })
	}
	for range kills {
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		server.kill()
		d, err := storeDriver("sqlite:"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := store.Check(t.Context(), d.(store.Keeper)); err != nil || !r.OK() {
			t.Fatalf("after a kill: %+v, %v", r, err)
		}
		server = start(t, dir, nil, args...)
		server.says("listening on ")
	}
	stop() // each agent ends the rollout that it is at
	agents.Wait()
	server.kill()
	l.check(path)
}

// freeAddress is a loopback address that nobody listens on: the server's, in all its lives.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// killLoad is the model server, the agents, and what they saw.
type killLoad struct {
	t         *testing.T
	url       string
	generated atomic.Int64
	retried   atomic.Int64

	mu    sync.Mutex
	seen  map[string]string // by answer, each of which is given once: the rollout
	ended []string          // rollouts whose end was acknowledged
}

// model answers each request with a text of its own, at once or token by token.
func (l *killLoad) model(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	text := fmt.Sprintf("answer number %d", l.generated.Add(1))
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","prompt_token_ids":[1,2,3],"choices":[{"index":0,"finish_reason":"stop","token_ids":[4],`+
			`"message":{"role":"assistant","content":%q},"logprobs":{"content":[{"token":"a","logprob":-0.5}]}}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`, text)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(delta, more, finish string) {
		fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{%s},"finish_reason":%s%s`+"\n\n", delta, finish, more)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(2 * time.Millisecond)
	}
	event(`"role":"assistant","content":""`, `,"logprobs":null}],"prompt_token_ids":[1,2,3]}`, "null")
	words := strings.SplitAfter(text, " ")
	for i, word := range words {
		finish := "null"
		if i == len(words)-1 {
			finish = `"stop"`
		}
		event(fmt.Sprintf(`"content":%q`, word), fmt.Sprintf(`,"logprobs":{"content":[{"token":%q,"logprob":-0.5}]},"token_ids":[%d]}]}`, word, 4+i), finish)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// agent runs rollout after rollout: five calls of a history that grows.
func (l *killLoad) agent(ctx context.Context, a int) {
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("r-%d-%d", a, n)
		l.insist("POST", "/api/rollouts", fmt.Sprintf(`[{"rollout_id":%q,"input":{}}]`, id), 201)
		l.insist("PATCH", "/api/rollouts/"+id, `{"status":{"state":"running","last_attempt_id":"0"}}`, 200, 409)
		stream := (a+n)%2 == 1
		messages := `{"role":"user","content":"begin"}`
		for k := range 5 {
			body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[%s]}`, stream, messages)
			text := answerText(l.insist("POST", "/proxy/rollout/"+id+"/attempt/0/mode/train/openai/v1/chat/completions", body, 200), stream)
			l.mu.Lock()
			if other, ok := l.seen[text]; ok {
				l.t.Errorf("%s and %s got the same answer %q", id, other, text)
			}
			l.seen[text] = id
			l.mu.Unlock()
			messages += fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user","content":"go on %d"}`, text, k)
		}
		l.insist("PATCH", "/api/rollouts/"+id, `{"status":{"state":"succeeded"}}`, 200, 409)
		l.mu.Lock()
		l.ended = append(l.ended, id)
		l.mu.Unlock()
	}
}

// insist sends a request until it is answered whole with one of the statuses. An SDK
// does so too, for less long.
func (l *killLoad) insist(method, path, body string, want ...int) string {
	began := time.Now()
	for try := 0; ; try++ {
		status, answer, err := l.once(method, path, body, try)
		for _, w := range want {
			if err == nil && status == w {
				return answer
			}
		}
		if err == nil && status < 500 && status != 429 {
			l.t.Errorf("%s %s: status %d: %s", method, path, status, answer)
			return answer
		}
		if time.Since(began) > time.Minute {
			l.t.Errorf("%s %s: given up after a minute: status %d, %v", method, path, status, err)
			return ""
		}
		l.retried.Add(1)
		time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond)
	}
}

func (l *killLoad) once(method, path, body string, try int) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, l.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer K")
	if try > 0 {
		req.Header.Set("X-Stainless-Retry-Count", fmt.Sprint(try))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") && !bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) {
		err = io.ErrUnexpectedEOF
	}
	return res.StatusCode, string(b), err
}

// answerText is the text of an answer, whole or streamed.
func answerText(body string, stream bool) string {
	var one struct {
		Choices []struct {
			Message, Delta struct{ Content string }
		}
	}
	if !stream {
		_ = json.Unmarshal([]byte(body), &one) // "" is noticed: each answer is another
		if len(one.Choices) == 0 {
			return ""
		}
		return one.Choices[0].Message.Content
	}
	text := ""
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if one.Choices = nil; ok && json.Unmarshal([]byte(data), &one) == nil && len(one.Choices) > 0 {
			text += one.Choices[0].Delta.Content
		}
	}
	return text
}

// check holds the record against what the agents saw.
func (l *killLoad) check(path string) {
	t := l.t
	t.Helper()
	s, err := openStore(t.Context(), "sqlite:"+path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all := 0
	on := map[string]string{} // answers on record
	rollouts, err := s.Rollouts(t.Context(), fulgur.RolloutQuery{Run: fulgur.DefaultRun, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]fulgur.RolloutState{}
	for _, r := range rollouts {
		state[string(r.ID)] = r.State
		calls, err := s.Calls(t.Context(), r.ID, "0")
		if err != nil {
			t.Fatal(err)
		}
		index := map[int]bool{}
		for i := range calls {
			c := &calls[i]
			if index[c.Index] {
				t.Errorf("%s has two calls with index %d", r.ID, c.Index)
			}
			index[c.Index] = true
			all++
			if c.Reply == nil || c.Reply.Content == "" {
				continue
			}
			if !c.Trainable { // it was cut off: its text is no answer
				continue
			}
			if other, ok := on[c.Reply.Content]; ok {
				t.Errorf("%q is on record twice: %s and %s", c.Reply.Content, other, r.ID)
			}
			on[c.Reply.Content] = string(r.ID)
		}
	}
	for text, id := range l.seen {
		if on[text] != id {
			t.Errorf("%s saw %q, which is not on its record", id, text)
		}
	}
	for _, id := range l.ended {
		if state[id] != fulgur.Succeeded {
			t.Errorf("rollout %s has ended, and its state is %q", id, state[id])
		}
	}
	if l.retried.Load() == 0 || len(l.ended) < 8 {
		t.Errorf("%d rollouts, %d retries: the kills hit nothing", len(l.ended), l.retried.Load())
	}
	t.Logf("%d rollouts, %d answers seen, %d calls on record of %d generations, %d retries", len(l.ended), len(l.seen), all, l.generated.Load(), l.retried.Load())
}
