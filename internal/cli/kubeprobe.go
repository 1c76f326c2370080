package cli

import (
	"bufio"
	"cmp"
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
	// streamTries is how often a stream is asked for until it arrives as it should.
	streamTries = 3

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
	var neighbour bool
	var install string
	var others map[string]string
	c := &cobra.Command{
		Use: kube.ProbeCommand + " GATEWAY-URL", Hidden: true, Args: cobra.MaximumNArgs(1),
		Short: "tell what can be reached from here beside the gateway",
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case neighbour:
				return a.beNeighbour(c.Context())
			case install != "":
				return installSelf(install)
			case len(args) == 0:
				return usageErr(errors.New("want the gateway's URL"))
			}
			targets := escapes(a.Getenv)
			for what, at := range others {
				targets = append(targets, target{what, "tcp", at})
			}
			return a.printJSON(probeNetwork(c.Context(), strings.TrimRight(args[0], "/"), targets))
		},
	}
	c.Flags().BoolVar(&neighbour, "neighbour", false, "be what another pod must not reach: print an address, and listen there")
	c.Flags().StringVar(&install, "install", "", "copy this program to a file, and end")
	c.Flags().StringToStringVar(&others, "try", nil, "more addresses to try, by what they are")
	return c
}

// beNeighbour listens until ctx ends.
func (a *app) beNeighbour(ctx context.Context) error {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if _, err := fmt.Fprintln(a.Stdout, net.JoinHostPort(a.Getenv("POD_IP"), port)); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil // ctx has ended
		}
		_ = conn.Close()
	}
}

// installSelf copies this program, for containers of images that have none to run.
func installSelf(path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// target is something that an isolated agent must not reach.
type target struct {
	what    string
	network string // tcp: connections are taken; udp: a DNS query is answered
	address string
}

func (t target) String() string {
	if t.network == "tcp" {
		return t.what + " (" + t.address + ")"
	}
	return t.what + " (" + t.address + ", UDP)"
}

// escapes are all of them that can be named without knowing the cluster.
func escapes(getenv func(string) string) []target {
	out := []target{{"the internet", "tcp", "1.1.1.1:443"}, {"a resolver of the internet", "tcp", "8.8.8.8:53"}, {"a resolver of the internet", "udp", "8.8.8.8:53"}, {"the cloud's metadata", "tcp", "169.254.169.254:80"}}
	if host := getenv("KUBERNETES_SERVICE_HOST"); host != "" {
		out = append(out, target{"the API server", "tcp", net.JoinHostPort(host, cmp.Or(getenv("KUBERNETES_SERVICE_PORT"), "443"))})
	}
	if ip := getenv("NODE_IP"); ip != "" {
		out = append(out, target{"its node's kubelet", "tcp", net.JoinHostPort(ip, "10250")})
	}
	raw, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			at := net.JoinHostPort(f[1], "53")
			out = append(out, target{"the cluster's DNS", "tcp", at}, target{"the cluster's DNS", "udp", at})
		}
	}
	return out
}

// probeNetwork asks the gateway for its health and for a stream, and tries to
// reach everything else.
func probeNetwork(ctx context.Context, gateway string, targets []target) (found kube.ProbeResult) {
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
	for range streamTries { // of a busy machine the first may look held back
		if err = streams(ctx, gateway+streamPath); err == nil {
			break
		}
	}
	if err != nil {
		found.Streams = err.Error()
	}
	open := make([]bool, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { open[i] = t.reached(ctx) })
	}
	wg.Wait()
	for i, t := range targets {
		if open[i] {
			found.Escaped = append(found.Escaped, t.String())
		} else {
			found.Closed = append(found.Closed, t.String())
		}
	}
	return found
}

// reached says whether there is an answer.
func (t target) reached(ctx context.Context) bool {
	d := net.Dialer{Timeout: escapeLimit}
	conn, err := d.DialContext(ctx, t.network, t.address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if t.network == "tcp" {
		return true
	}
	query := []byte{0x46, 0x75, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1} // DNS: the address of the root
	for range 2 {                                                            // a datagram may be lost
		_ = conn.SetDeadline(time.Now().Add(escapeLimit / 2))
		if _, err := conn.Write(query); err != nil {
			return false
		}
		if _, err := conn.Read(make([]byte, 512)); err == nil {
			return true
		}
	}
	return false
}

func answers(ctx context.Context, url string) error {
	ctx, done := context.WithTimeout(ctx, 3*time.Second)
	defer done()
	body, err := fetchBody(ctx, url)
	if err != nil {
		return err
	}
	return body.Close()
}

// fetchBody makes a request; the caller closes the answer's body.
func fetchBody(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s is answered with %s", url, resp.Status)
	}
	return resp.Body, nil
}

// streams says whether lines arrive with the time between them that they were sent
// with, each of them: what is between may hold back all, or some.
func streams(ctx context.Context, url string) error {
	ctx, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	body, err := fetchBody(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	var at []time.Time
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if lines.Text() == fmt.Sprintf("data: %d", len(at)) {
			at = append(at, time.Now())
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s breaks off after %d of %d parts: %w", url, len(at), streamN, err)
	}
	if len(at) != streamN {
		return fmt.Errorf("of %d parts of %s %d arrived: something else answers there, or cuts answers off", streamN, url, len(at))
	}
	held := 0
	for i := range at[1:] {
		if at[i+1].Sub(at[i]) < streamGap/3 {
			held++
		}
	}
	if held > 0 {
		return fmt.Errorf("%d of %d parts, sent over %s, were held back until a later one: all arrived within %s", held, streamN, (streamN-1)*streamGap, at[streamN-1].Sub(at[0]).Round(time.Millisecond))
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
