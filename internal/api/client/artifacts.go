package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/fulgur-rl/fulgur"
)

func artifactPath(key fulgur.AttemptKey, name string) string {
	return escape("/rollouts", string(key.Rollout), "attempts", string(key.Attempt), "artifacts", name)
}

// Artifacts does what store.Store's method of that name does.
func (c *Client) Artifacts(ctx context.Context, key fulgur.AttemptKey) ([]fulgur.Artifact, error) {
	return get[[]fulgur.Artifact](ctx, c, "list artifacts", escape("/rollouts", string(key.Rollout), "attempts", string(key.Attempt), "artifacts"), nil)
}

// Artifact does what store.Store's method of that name does.
func (c *Client) Artifact(ctx context.Context, key fulgur.AttemptKey, name string) (fulgur.Artifact, io.ReadCloser, error) {
	const op = "read an artifact"
	a := fulgur.Artifact{Name: name}
	resp, err := c.stream(ctx, op, "GET", artifactPath(key, name), "", func() (io.Reader, error) { return nil, nil })
	if err != nil {
		return a, nil, err
	}
	a.Size = resp.ContentLength
	if tag := resp.Header.Get("ETag"); len(tag) == 66 {
		a.SHA256 = tag[1:65]
	}
	return a, resp.Body, nil
}

// PutArtifact does what store.Store's method of that name does; the server has its own
// bound of bytes. A body that can be read again (io.Seeker) is sent again where the server
// could not be reached.
func (c *Client) PutArtifact(ctx context.Context, key fulgur.AttemptKey, name, reader string, body io.Reader, _ int64) (out fulgur.Artifact, created bool, err error) {
	const op = "keep an artifact"
	sent := false
	resp, err := c.stream(ctx, op, "PUT", artifactPath(key, name), reader, func() (io.Reader, error) {
		if s, ok := body.(io.Seeker); ok {
			_, err := s.Seek(0, io.SeekStart)
			return io.NopCloser(body), err
		}
		if sent {
			return nil, errors.New("the body cannot be sent twice")
		}
		sent = true
		return io.NopCloser(body), nil
	})
	if err != nil {
		return out, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, false, fulgur.E(fulgur.KindInternal, op, "the server's answer cannot be read: is it a Fulgur server of this version?", err)
	}
	return out, resp.StatusCode == http.StatusCreated, nil
}

// DeleteArtifact does what store.Store's method of that name does.
func (c *Client) DeleteArtifact(ctx context.Context, key fulgur.AttemptKey, name string) error {
	return c.do(ctx, request{op: "delete an artifact", method: "DELETE", path: artifactPath(key, name)}, nil)
}

// stream sends a request whose body, or answer, is not held in memory, and again as do
// does as long as the body can be had again.
func (c *Client) stream(ctx context.Context, op, method, path, reader string, body func() (io.Reader, error)) (*http.Response, error) {
	var last error
	start, wait := time.Now(), 50*time.Millisecond
	for {
		b, err := body()
		if err != nil {
			if last != nil {
				return nil, last
			}
			return nil, fulgur.E(fulgur.KindInvalid, op, "the body cannot be read: "+err.Error(), err)
		}
		resp, again, err := c.open(ctx, op, method, path, reader, b)
		if err == nil || !again || time.Since(start)+wait > c.o.RetryFor {
			return resp, err
		}
		if last = err; !sleep(ctx, wait) {
			return nil, canceled(op, ctx)
		}
		wait = min(2*wait, 2*time.Second)
	}
}

func (c *Client) open(ctx context.Context, op, method, path, reader string, body io.Reader) (resp *http.Response, again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, false, err
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if reader != "" {
		req.Header.Set("Fulgur-Reader", reader)
	}
	resp, err = c.o.HTTP.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, false, canceled(op, ctx)
		}
		return nil, true, fulgur.E(fulgur.KindUnavailable, op, "the server at "+c.base+" cannot be reached", err)
	}
	if resp.StatusCode < 300 {
		return resp, false, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	_ = resp.Body.Close()
	if err != nil {
		return nil, true, fulgur.E(fulgur.KindUnavailable, op, "the server at "+c.base+" broke off its answer", err)
	}
	return nil, resp.StatusCode == http.StatusServiceUnavailable, problem(op, resp.StatusCode, text)
}
