package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	key   = "bench-key"
	model = "policy"
)

// server is a process that is measured.
type server struct {
	name  string
	cmd   *exec.Cmd
	url   string
	plain bool   // an ordinary proxy, without v1's routes
	store string // fulgur's database
	done  chan struct{}
	once  sync.Once
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// stop ends a server and waits for it.
func (s *server) stop() {
	s.once.Do(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.done:
		case <-time.After(15 * time.Second):
			_ = syscall.Kill(-s.pid(), syscall.SIGKILL)
			<-s.done
		}
	})
}

func (b *bench) stopAll() {
	for _, s := range b.running {
		s.stop()
	}
	b.running = nil
}

// freePort is a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// start runs a server and waits until its port answers.
func (b *bench) start(name string, port int, env []string, args ...string) (*server, error) {
	out, err := os.CreateTemp(b.dir, name+"-*.log")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s := &server{name: name, url: fmt.Sprintf("http://127.0.0.1:%d", port), done: make(chan struct{}), cmd: exec.Command(args[0], args[1:]...)}
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = b.dir, out, out
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	b.running = append(b.running, s)
	for range 600 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return s, c.Close()
		}
		select {
		case <-s.done:
			return nil, fmt.Errorf("%s ended before it was up", name)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("%s is not up after 30 s", name)
}

// startFulgur starts fulgur serve on a new store.
func (b *bench) startFulgur(part string, flags ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	var env []string
	if b.profiles != "" {
		env = append(env, "FULGUR_CPUPROFILE="+filepath.Join(b.profiles, part+".prof"))
	}
	store := filepath.Join(b.dir, part+".db")
	args := append([]string{b.fulgur, "serve", "--listen", fmt.Sprintf("127.0.0.1:%d", port), "--key", key, "--model", model,
		"--store", "sqlite:" + store, "--log-level", "warn"}, flags...)
	s, err := b.start("fulgur", port, env, args...)
	if err != nil {
		return nil, err
	}
	s.store = store
	return s, s.register(b.mock.url)
}

// startReference starts the reference gateway as it ships.
func (b *bench) startReference() (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s, err := b.start("reference", port, nil, b.reference, "host=127.0.0.1", fmt.Sprintf("port=%d", port), "key="+key, "default_proxy.model_name="+model)
	if err != nil {
		return nil, err
	}
	return s, s.register(b.mock.url)
}

// register tells a v1 gateway where the model is.
func (s *server) register(upstream string) error {
	return s.do("POST", "/api/models", []any{map[string]any{"model": model, "endpoint": upstream + "/v1", "version": 1}}, nil)
}

const nginxConf = `daemon off; worker_processes 2; pid %[1]s/nginx.pid; error_log stderr error;
events { worker_connections 8192; }
http {
	access_log off; client_max_body_size 64m; client_body_buffer_size 1m;
	client_body_temp_path %[1]s/nginx-body; proxy_temp_path %[1]s/nginx-proxy; fastcgi_temp_path %[1]s/nginx-f; uwsgi_temp_path %[1]s/nginx-u; scgi_temp_path %[1]s/nginx-s;
	keepalive_requests 1000000;
	upstream model { server %[3]s; keepalive 1024; keepalive_requests 1000000; }
	server {
		listen 127.0.0.1:%[2]d backlog=4096;
		location / { proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffers 64 16k; proxy_buffer_size 16k; }
	}
}
`

// startNginx starts nginx as a proxy that keeps its connections and buffers in memory.
func (b *bench) startNginx() (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(b.dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, b.dir, port, b.mock.url[len("http://"):]), 0o644); err != nil {
		return nil, err
	}
	s, err := b.start("nginx", port, nil, b.nginx, "-p", b.dir, "-e", "stderr", "-c", conf)
	if s != nil {
		s.plain = true
	}
	return s, err
}

// startProxy starts this program as a Go reverse proxy.
func (b *bench) startProxy() (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s, err := b.start("go-proxy", port, nil, self, "proxy", fmt.Sprintf("127.0.0.1:%d", port), b.mock.url)
	if s != nil {
		s.plain = true
	}
	return s, err
}

// serveProxy is a Go reverse proxy that records nothing. It reads a request whole
// before it sends it on: streaming it cuts answers (golang/go#40747).
func serveProxy(listen, upstream string) error {
	to, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	p := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 2048, DisableCompression: true},
	}
	return http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(newReader(body))
		p.ServeHTTP(w, r)
	}))
}

// others start the proxies that fulgur is measured beside, those that are installed.
func (b *bench) others() []func() (*server, error) {
	if b.alone {
		return nil
	}
	var out []func() (*server, error)
	if b.nginx != "" {
		out = append(out, b.startNginx)
	}
	out = append(out, b.startProxy)
	if b.reference != "" {
		out = append(out, b.startReference)
	}
	return out
}

// wait is a sleep that ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
