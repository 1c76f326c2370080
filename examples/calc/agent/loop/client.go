package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Config says where the model is and how much the agent may ask of it.
type Config struct {
	BaseURL   string // OPENAI_BASE_URL, ends in /v1
	Key       string // OPENAI_API_KEY
	Model     string // OPENAI_MODEL
	MaxTokens int    // CALC_MAX_TOKENS, of one answer
	MaxCalls  int    // CALC_MAX_CALLS, of one conversation
}

// FromEnv reads a Config from the environment.
func FromEnv(getenv func(string) string) (Config, error) {
	c := Config{BaseURL: getenv("OPENAI_BASE_URL"), Key: getenv("OPENAI_API_KEY"), Model: getenv("OPENAI_MODEL")}
	if c.BaseURL == "" {
		return c, errors.New("OPENAI_BASE_URL is not set: give the base URL of an OpenAI-compatible server, such as http://127.0.0.1:8080/openai/v1")
	}
	if c.Model == "" {
		c.Model = "calc"
	}
	var err error
	if c.MaxTokens, err = positive(getenv, "CALC_MAX_TOKENS", DefaultMaxTokens); err != nil {
		return c, err
	}
	c.MaxCalls, err = positive(getenv, "CALC_MAX_CALLS", DefaultMaxCalls)
	return c, err
}

func positive(getenv func(string) string, name string, otherwise int) (int, error) {
	s := getenv(name)
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is %q: give a whole number of at least 1", name, s)
	}
	return n, nil
}

// NewTransport is net/http's transport without what a local conversation has no
// use for: starting it costs next to nothing, and one connection serves all calls.
func NewTransport() *http.Transport {
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 1}
}

// NewChat returns a Chat that asks the server of c over HTTP. It waits out 429
// and 503 a few times, as the server asks; any other refusal is an error.
func NewChat(c Config, client *http.Client) Chat {
	url := strings.TrimSuffix(c.BaseURL, "/") + "/chat/completions"
	head := fmt.Sprintf(`{"model":%s,"max_tokens":%d,"tools":%s,"messages":[`, quote(c.Model), c.MaxTokens, Tools)
	return func(ctx context.Context, messages []json.RawMessage) (json.RawMessage, error) {
		body := []byte(head)
		for i, m := range messages {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, m...)
		}
		body = append(body, "]}"...)
		for try := 0; ; try++ {
			status, header, answer, err := post(ctx, client, url, c.Key, body)
			if err != nil {
				return nil, fmt.Errorf("the model at %s can't be reached: %w", url, err)
			}
			if status == http.StatusOK {
				return message(answer)
			}
			if !wait(status, header) || try >= 4 {
				return nil, fmt.Errorf("the model at %s answered %d: %s", url, status, cut(answer))
			}
			if err := sleep(ctx, delay(header, try)); err != nil {
				return nil, err
			}
		}
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s) // a string always has a JSON form
	return string(b)
}

func post(ctx context.Context, client *http.Client, url, key string, body []byte) (int, http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, answer, err
}

func message(answer []byte) (json.RawMessage, error) {
	var out struct {
		Choices []struct {
			Message json.RawMessage `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(answer, &out); err != nil || len(out.Choices) == 0 || len(out.Choices[0].Message) == 0 || out.Choices[0].Message[0] != '{' {
		return nil, fmt.Errorf("the server's answer is not a chat completion: %s", cut(answer))
	}
	return out.Choices[0].Message, nil
}

// wait says whether the server asks to come back later.
func wait(status int, h http.Header) bool {
	return (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && h.Get("X-Should-Retry") != "false"
}

// delay is what Retry-After says (seconds), at most half a minute; without it
// half a second, doubled with each try.
func delay(h http.Header, try int) time.Duration {
	if s, err := strconv.ParseFloat(h.Get("Retry-After"), 64); err == nil && s >= 0 {
		return time.Duration(min(s, 30) * float64(time.Second))
	}
	return 500 * time.Millisecond << try
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func cut(b []byte) string {
	s := strings.TrimSpace(string(b))
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
