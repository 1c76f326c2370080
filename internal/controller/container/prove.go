package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	probeName = "container-probe"
	// What a probe exits with.
	probeUnreached = 3 // no way to the gateway
	probeEscaped   = 4 // a way to somewhere else
	probeLimit     = 10 * time.Second
)

// Prove implements controller.Prover: a container like the agents', of the same
// image and network, asks the gateway for its health and tries to reach it past
// the relay.
func (r *Runner) Prove(ctx context.Context, gateway string) error {
	const op = "try the containers' network"
	if r.inner == "" {
		r.Log.Warn("whether containers reach the gateway is not tried: this program is not static (build it with CGO_ENABLED=0)")
		return nil
	}
	health := strings.TrimRight(gateway, "/") + "/healthz"
	// A name of its own and no label: another controller of this run may lead, and adopt.
	once := "probe-" + strings.ToLower(rand.Text()[:8])
	x := newBox(plan.Key{Rollout: fulgur.RolloutID(once)}, "fulgur-"+r.scope+"-"+once)
	args := append([]string{"run", "--rm"}, r.guarded(x.name)...)
	args = append(args, "--volume", r.inner+":"+innerPath+":ro", "--entrypoint", innerPath)
	if r.Network == NetworkGateway {
		env, err := r.openDoor(x, map[string]string{"health": health}, nil)
		if err != nil {
			return err
		}
		defer x.door.shut(true)
		args = append(args, "--network", r.isolated(), "--volume", x.door.folder()+":"+filepath.Dir(socketPath))
		args = append(args, r.Extra...)
		args = append(args, r.Image, innerName, innerPath, probeName, env["health"], gateway)
	} else {
		args = append(args, "--network", r.Network)
		args = append(args, r.Extra...)
		args = append(args, r.Image, probeName, health)
	}
	_, err := r.client.run(ctx, args...)
	var f *failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f) && f.code == probeEscaped:
		return fulgur.E(fulgur.KindForbidden, op, "containers of "+r.Image+" reach more than the gateway: "+f.text, nil)
	case errors.As(err, &f) && f.code == probeUnreached && r.Network == NetworkGateway:
		return fulgur.E(fulgur.KindUnavailable, op, "containers of "+r.Image+" do not reach the gateway through their relay: "+f.text, nil)
	case errors.As(err, &f) && f.code == probeUnreached:
		return fulgur.E(fulgur.KindUnavailable, op, fmt.Sprintf("containers in the network %s do not reach the gateway at %s: set runner.agent_url to its address as they see it, or runner.container.network to gateway: %s", r.Network, gateway, f.text), nil)
	}
	r.discard(x.name)
	return fulgur.E(fulgur.KindUnavailable, op, "no container of "+r.Image+" can be started"+advice(err), err)
}

// advice is what helps where the runtime's own words do not say it: it may not set
// limits above this user's, and its defaults are.
func advice(err error) string {
	text := strings.ToLower(err.Error())
	if strings.Contains(text, "rlimit") && strings.Contains(text, "not permitted") {
		return " (its default limits are above this user's own: set default_ulimits in containers.conf, docs/container.md)"
	}
	return ""
}

// probe is what runs in the container: URL has to answer; past, if there is one,
// is the gateway's own address, which must not.
func probe(args []string) (int, error) {
	c := http.Client{Timeout: probeLimit}
	resp, err := c.Get(args[0])
	if err != nil {
		return probeUnreached, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return probeUnreached, fmt.Errorf("%s answers with %s", args[0], resp.Status)
	}
	if len(args) < 2 {
		return 0, nil
	}
	if u, err := url.Parse(args[1]); err == nil && u.Host != "" {
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
		}
		if conn, err := net.DialTimeout("tcp", host, 2*time.Second); err == nil {
			_ = conn.Close()
			return probeEscaped, fmt.Errorf("%s can be reached past the relay", host)
		}
	}
	all, err := net.Interfaces()
	if err != nil && !os.IsPermission(err) {
		return probeEscaped, fmt.Errorf("looking at the interfaces: %w", err)
	}
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			return probeEscaped, fmt.Errorf("it has a network interface, %s", i.Name)
		}
	}
	return 0, nil
}
