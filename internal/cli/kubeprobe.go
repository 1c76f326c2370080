package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
)

const (
	streamPath = "/healthz/stream"
	streamGap  = 150 * time.Millisecond
	streamN    = 4

	reachLimit  = 20 * time.Second // a policy takes a moment to hold, and to open
	escapeLimit = 2 * time.Second
)

// serveStream sends a few lines with time between them, so that whoever calls sees
// whether something on the way holds them back.
func serveStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	c := http.NewResponseController(w)
	for i := range streamN {
		if _, err := fmt.Fprintf(w, "data: %d\n\n", i); err != nil || c.Flush() != nil {
			return
		}
		select {
		case <-time.After(streamGap):
		case <-r.Context().Done():
			return
		}
	}
}

// probeNetworkCommand is what runs where agents of Kubernetes run, before the first
// of them does.
func (a *app) probeNetworkCommand() *cobra.Command {
	return &cobra.Command{
		Use: kube.ProbeCommand + " GATEWAY-URL", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "tell what can be reached from here beside the gateway",
		RunE: func(c *cobra.Command, args []string) error {
			return a.printJSON(probeNetwork(c.Context(), strings.TrimRight(args[0], "/"), escapes(a.Getenv)))
		},
	}
}

// escapes are addresses that an isolated agent must not reach, by what they are.
func escapes(getenv func(string) string) map[string]string {
	out := map[string]string{"the internet": "1.1.1.1:443", "a resolver of the internet": "8.8.8.8:53", "the cloud's metadata": "169.254.169.254:80"}
	if host := getenv("KUBERNETES_SERVICE_HOST"); host != "" {
		port := getenv("KUBERNETES_SERVICE_PORT")
		if port == "" {
			port = "443"
		}
		out["the API server"] = net.JoinHostPort(host, port)
	}
	if ip := getenv("NODE_IP"); ip != "" {
		out["its node's kubelet"] = net.JoinHostPort(ip, "10250")
	}
	if raw, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
				out["the cluster's DNS"] = net.JoinHostPort(f[1], "53")
			}
		}
	}
	return out
}

// probeNetwork asks the gateway for its health and for a stream, and tries to
// reach everything else.
func probeNetwork(ctx context.Context, gateway string, targets map[string]string) (found kube.ProbeResult) {
	found.Escaped = []string{}
	var err error
	for end := time.Now().Add(reachLimit); ; {
		if err = answers(ctx, gateway+"/healthz"); err == nil || time.Now().After(end) || !pauseFor(ctx, 500*time.Millisecond) {
			break
		}
	}
	if err != nil {
		found.Reached = err.Error()
		return found
	}
	if err := streams(ctx, gateway+streamPath); err != nil {
		found.Streams = err.Error()
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for what, address := range targets {
		wg.Go(func() {
			d := net.Dialer{Timeout: escapeLimit}
			conn, err := d.DialContext(ctx, "tcp", address)
			if err != nil {
				return
			}
			_ = conn.Close()
			mu.Lock()
			defer mu.Unlock()
			found.Escaped = append(found.Escaped, what+" ("+address+")")
		})
	}
	wg.Wait()
	return found
}

func answers(ctx context.Context, url string) error {
	ctx, done := context.WithTimeout(ctx, 3*time.Second)
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is answered with %s", url, resp.Status)
	}
	return nil
}

// streams says whether lines arrive with the time between them that they were sent with.
func streams(ctx context.Context, url string) error {
	ctx, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotFound {
		return nil // another gateway than ours, or an older one: it cannot be asked
	}
	var first, last time.Time
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "data: ") {
			continue
		}
		if last = time.Now(); first.IsZero() {
			first = last
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if last.Sub(first) < streamGap {
		return fmt.Errorf("what was sent over %s arrived within %s", (streamN-1)*streamGap, last.Sub(first).Round(time.Millisecond))
	}
	return nil
}

// pauseFor waits, and says whether ctx is still good.
func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
