package kube

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller"
)

const (
	logLines = 20
	logBytes = 64 << 10
	logMost  = 1 << 20         // that is asked for at once, or as much as is kept
	logLimit = 5 * time.Second // how long an exit waits for its log

	defaultLogCap = 1 << 20
)

// keepLog reads the agent's log, writes it if the policy keeps it, and returns its last
// lines. Of one that is longer than what is asked for at once, the beginning is kept and
// the last lines.
func (r *Runner) keepLog(ctx context.Context, a *attempt, good bool) (tail, path string) {
	r.mu.Lock()
	pod, agent, redact := a.pod, a.agent, a.redactorLocked()
	r.mu.Unlock()
	ctx, done := context.WithTimeout(ctx, logLimit)
	defer done()
	size := r.LogCap
	if size <= 0 {
		size = defaultLogCap
	}
	buf, most := controller.NewLogBuffer(size), max(size, logMost)
	read := func(q url.Values) (int64, error) {
		q.Set("container", agent)
		resp, err := r.c.send(ctx, http.MethodGet, r.c.path("v1/pods/"+pod.Name+"/log"), q, nil)
		if err != nil {
			return 0, err
		}
		defer func() { _ = resp.Body.Close() }()
		return io.Copy(buf, io.LimitReader(resp.Body, int64(most)))
	}
	n, err := read(url.Values{"limitBytes": {strconv.Itoa(most)}})
	if err == nil && n >= int64(most) {
		_, _ = io.WriteString(buf, "\n… what follows was not read, but for the end …\n")
		_, err = read(url.Values{"tailLines": {strconv.Itoa(logLines)}, "limitBytes": {strconv.Itoa(logBytes)}})
	}
	if err != nil {
		r.log.Info("an attempt's log could not be read", "rollout", a.key.Rollout, "pod", pod.Name, "err", err)
	}
	tail, path, err = controller.WriteLog(r.State, r.Logs, a.key, []byte(redact(string(buf.Bytes()))), nil, good)
	if err != nil {
		r.log.Warn("an attempt's log could not be written", "err", err)
	}
	return tail, path
}
