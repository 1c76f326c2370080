package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"time"

	"github.com/fulgur-rl/fulgur/internal/controller/kube"
)

// clusterPatience is how long a look at a cluster may take: images are fetched.
const clusterPatience = 40 * time.Minute

// checkCluster looks at the run's cluster as the run would find it.
func checkCluster(ctx context.Context, p patient) (out []finding) {
	if p.file == nil || p.file.Runner.Kind != "kubernetes" {
		return nil
	}
	o, err := kubeOptions(p.file)
	if err == nil {
		o.Gateway, o.Inputs = gatewayOfRun(p.file), sampleInputs(p.file)
		o.Run, o.Scope = p.file.Run, "doctor "+rand.Text() // not the run's own: that may be under way
		o.Log, o.Tell = p.app.logger("error"), p.app.say
	}
	if err != nil {
		return []finding{{Name: "cluster", Status: failed, Detail: err.Error()}}
	}
	if _, port, _ := net.SplitHostPort(p.file.Listen); p.file.Server == "" && port == "0" {
		out = append(out, finding{Name: "gateway", Status: warned, Detail: "listen: " + p.file.Listen + " is another port at each start, and " + o.Gateway + " cannot lead there", Do: "set listen to an address with a port, such as 0.0.0.0:8080, and runner.agent_url to how pods reach it"})
	} else if stop, stands := standIn(p.file); stands {
		defer stop()
		out = append(out, finding{Name: "gateway", Status: healthy, Detail: "none runs yet: a stand-in answers at " + p.file.Listen + " while this looks; " + o.Gateway + " has to lead there"})
	}
	for _, c := range kube.Examine(ctx, o, o.Gateway, limits(p.file.File).Slots) {
		out = append(out, finding{Name: c.Name, Status: c.Status, Detail: c.Detail, Do: c.Do})
	}
	return out
}

// gatewayOfRun is the gateway's address as the run's agents are given it.
func gatewayOfRun(r *runFile) string {
	return cmp.Or(r.Runner.AgentURL, r.Server, "http://"+r.Listen)
}

// standIn answers as the gateway of `fulgur train` would, where none is yet. With a
// server the gateway is there, and so it is where the address is taken.
func standIn(r *runFile) (stop func(), stands bool) {
	if r.Server != "" {
		return nil, false
	}
	l, err := net.Listen("tcp", r.Listen)
	if err != nil {
		return nil, false
	}
	s := &http.Server{Handler: answerProbes(), ReadHeaderTimeout: 20 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return func() { _ = s.Close(); <-done }, true
}

// answerProbes answers what a probe asks of a gateway.
func answerProbes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET "+streamPath, serveStream)
	return mux
}
