package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is the one that test/kube/run.sh has started.
type cluster struct {
	dir, kubeconfig, base string
	http                  *http.Client
	qps                   float64 // of the runner
}

func open() (*cluster, error) {
	c := &cluster{dir: os.Getenv("FULGUR_TEST_KUBE"), qps: 200}
	if c.dir == "" {
		return nil, fmt.Errorf("no cluster: run this by test/kube/run.sh --with go run ./bench/kube")
	}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, err
	}
	c.base = cfg.Host
	c.http, err = rest.HTTPClientFor(cfg)
	return c, err
}

func (c *cluster) call(ctx context.Context, method, path, contentType string, in, out any) error {
	var body io.Reader
	switch in := in.(type) {
	case nil:
	case []byte:
		body = bytes.NewReader(in)
	default:
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "bench")
	req.Header.Set("Content-Type", contentType)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

const jsonType = "application/json"

// namespace makes one, with a quota if hard is not nil.
func (c *cluster) namespace(ctx context.Context, hard map[string]string) (string, error) {
	ns := "bench-" + strings.ToLower(rand.Text()[:8])
	if err := c.call(ctx, http.MethodPost, "/api/v1/namespaces", jsonType, map[string]any{"metadata": map[string]string{"name": ns}}, nil); err != nil {
		return "", err
	}
	at := "/api/v1/namespaces/" + ns
	if hard != nil {
		if err := c.call(ctx, http.MethodPost, at+"/resourcequotas", jsonType, map[string]any{"metadata": map[string]string{"name": "few"}, "spec": map[string]any{"hard": hard}}, nil); err != nil {
			return "", err
		}
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var q struct {
			Status struct{ Used map[string]string }
		}
		if hard != nil {
			if err := c.call(ctx, http.MethodGet, at+"/resourcequotas/few", jsonType, nil, &q); err != nil || len(q.Status.Used) == 0 {
				continue
			}
		}
		if c.call(ctx, http.MethodGet, at+"/serviceaccounts/default", jsonType, nil, nil) == nil {
			return ns, nil
		}
	}
	return "", fmt.Errorf("namespace %s does not become usable", ns)
}

// forget removes a namespace with all that is in it, and waits for that: what is
// removed would slow down what is measured next.
func (c *cluster) forget(ctx context.Context, ns string) {
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if c.call(ctx, http.MethodDelete, "/api/v1/namespaces/"+ns, jsonType, nil, nil) != nil &&
			c.call(ctx, http.MethodGet, "/api/v1/namespaces/"+ns, jsonType, nil, nil) != nil {
			return
		}
	}
}

// audited calls f for each line of the audit log that is about a namespace.
func (c *cluster) audited(ns string, f func(agent string, status int, at time.Time)) error {
	file, err := os.Open(filepath.Join(c.dir, "audit.log"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	mark := []byte(`"namespace":"` + ns + `"`)
	in := bufio.NewScanner(file)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		if !bytes.Contains(in.Bytes(), mark) {
			continue
		}
		var e struct {
			UserAgent                string
			RequestReceivedTimestamp time.Time
			ResponseStatus           struct{ Code int }
		}
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return err
		}
		f(e.UserAgent, e.ResponseStatus.Code, e.RequestReceivedTimestamp)
	}
	return in.Err()
}

// requests counts those of a program between two times, and the most in one second.
func (c *cluster) requests(ns, agent string, from, to time.Time) (n, most int, err error) {
	seconds := map[int64]int{}
	err = c.audited(ns, func(a string, _ int, at time.Time) {
		if strings.HasPrefix(a, agent) && at.After(from) && at.Before(to) {
			n++
			s := at.Unix()
			seconds[s]++
			most = max(most, seconds[s])
		}
	})
	return n, most, err
}

// refused counts refusals of Jobs.
func (c *cluster) refused(ns string, from time.Time) (n int, err error) {
	err = c.audited(ns, func(a string, status int, at time.Time) {
		if strings.HasPrefix(a, "fulgur") && status == http.StatusForbidden && at.After(from) {
			n++
		}
	})
	return n, err
}

// manifests returns n Jobs with their Secrets, one JSON document after the other:
// copies of one that a namespace holds.
func (c *cluster) manifests(ctx context.Context, ns string, n int) ([]byte, error) {
	var jobs struct{ Items []map[string]any }
	if err := c.call(ctx, http.MethodGet, "/apis/batch/v1/namespaces/"+ns+"/jobs?limit=1", jsonType, nil, &jobs); err != nil {
		return nil, err
	}
	if len(jobs.Items) == 0 {
		return nil, fmt.Errorf("no Job was kept to be copied")
	}
	job := jobs.Items[0]
	meta, _ := job["metadata"].(map[string]any)
	name := fmt.Sprint(meta["name"])
	var secret map[string]any
	if err := c.call(ctx, http.MethodGet, "/api/v1/namespaces/"+ns+"/secrets/"+name, jsonType, nil, &secret); err != nil {
		return nil, err
	}
	delete(job, "status")
	spec, _ := job["spec"].(map[string]any)
	delete(spec, "selector")
	template, _ := spec["template"].(map[string]any)
	delete(template, "metadata")
	job["apiVersion"], job["kind"], secret["apiVersion"], secret["kind"] = "batch/v1", "Job", "v1", "Secret"
	var both bytes.Buffer
	for _, o := range []map[string]any{secret, job} {
		o["metadata"] = map[string]any{"name": name}
		raw, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&both, "---\n%s\n", raw)
	}
	var out bytes.Buffer
	for i := range n {
		out.WriteString(strings.ReplaceAll(both.String(), name, fmt.Sprint("copy-", i)))
	}
	return out.Bytes(), nil
}

// kubectlRun applies manifests, one object after the other as kubectl does it, and
// waits for n Jobs by listing them. kubectl itself took 45 to 65 s here before it
// asked for the first object, and its wait asks for one Job after the other: that is
// left out, as nothing to be compared with. With program set it is run all the same.
func kubectlRun(ctx context.Context, c *cluster, program, ns string, manifests []byte, n int) (time.Duration, error) {
	begin := time.Now()
	if program != "" {
		apply := exec.CommandContext(ctx, program, "--kubeconfig", c.kubeconfig, "-n", ns, "apply", "--server-side", "-f", "-")
		apply.Stdin = bytes.NewReader(manifests)
		if out, err := apply.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s apply: %w: %s", program, err, out)
		}
	} else if err := c.apply(ctx, ns, manifests); err != nil {
		return 0, err
	}
	for {
		var list struct {
			Items []struct{ Status struct{ Succeeded int } }
		}
		if err := c.call(ctx, http.MethodGet, "/apis/batch/v1/namespaces/"+ns+"/jobs", jsonType, nil, &list); err != nil {
			return 0, err
		}
		over := 0
		for _, j := range list.Items {
			over += j.Status.Succeeded
		}
		if over == n {
			return time.Since(begin), nil
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// apply does what kubectl apply --server-side does.
func (c *cluster) apply(ctx context.Context, ns string, manifests []byte) error {
	for doc := range strings.SplitSeq(string(manifests), "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := json.Unmarshal([]byte(doc), &o); err != nil {
			return err
		}
		path := "/api/v1/namespaces/" + ns + "/secrets/"
		if o.Kind == "Job" {
			path = "/apis/batch/v1/namespaces/" + ns + "/jobs/"
		}
		if err := c.call(ctx, http.MethodPatch, path+o.Metadata.Name+"?fieldManager=kubectl", "application/apply-patch+yaml", []byte(doc), nil); err != nil {
			return err
		}
	}
	return nil
}
