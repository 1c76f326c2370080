package kubelet

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fulgur-rl/fulgur/test/kubeapi"
)

// What run.sh gave the other machine.
const (
	gatewayHost = "10.8.0.2:8080"
	gatewayName = "gateway.test:8080" // in the controller's /etc/hosts; no DNS knows it
	clusterDNS  = "10.8.0.3:53"
	internet    = "1.1.1.1:443"
	resolver    = "8.8.8.8:53"
	metadata    = "169.254.169.254:80"
	kubeletPort = "10.9.9.1:10250" // the node's own
	apiServer   = "10.96.0.1:443"  // as pods are told; here nothing leads from there to the real one
)

// startWorld starts the other machine's servers.
func (n *node) startWorld() {
	n.t.Helper()
	host, _, _ := net.SplitHostPort(apiServer)
	if out, err := exec.Command("ip", "-n", "world", "addr", "replace", host+"/32", "dev", "lo").CombinedOutput(); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("ip", "netns", "exec", "world", os.Args[0])
	cmd.Env = append(os.Environ(), "DO=world "+strings.Join([]string{gatewayHost, clusterDNS, internet, resolver, metadata, apiServer}, " "))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	n.Until("the other machine serves", func() bool { return open4(metadata) })
}

// world serves a gateway's kubeapi.Health, and its stream, on the first of the addresses,
// and takes connections on the others; where DNS is, datagrams are answered too.
func world(addresses []string) error {
	errs := make(chan error)
	for i, a := range addresses {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		if strings.HasSuffix(a, ":53") {
			if err := echo(a); err != nil {
				return err
			}
		}
		go func() {
			if i == 0 {
				errs <- http.Serve(l, http.HandlerFunc(kubeapi.Health))
				return
			}
			for {
				c, err := l.Accept()
				if err != nil {
					errs <- err
					return
				}
				_ = c.Close()
			}
		}()
	}
	return errors.Join(<-errs)
}

// echo answers datagrams.
func echo(address string) error {
	l, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go func() { // as long as the process
		buf := make([]byte, 512)
		for {
			if n, from, err := l.ReadFrom(buf); err == nil {
				_, _ = l.WriteTo(buf[:n], from)
			}
		}
	}()
	return nil
}

// open4 says whether a connection is taken.
func open4(address string) bool {
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// dial waits until the first address takes connections, says which of the others
// do, and exits with 6, so that its log is kept.
func dial(addresses []string) {
	for range 20 {
		if open4(addresses[0]) {
			fmt.Fprintln(os.Stderr, addresses[0], "open")
			break
		}
	}
	var wg sync.WaitGroup
	for _, a := range addresses[1:] {
		wg.Go(func() {
			if open4(a) {
				fmt.Fprintln(os.Stderr, a, "open")
			}
		})
	}
	wg.Wait()
	os.Exit(6)
}
