package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/sandbox"
)

// relayCommand stands beside an agent and adds its credential.
func (a *app) relayCommand() *cobra.Command {
	var addr, upstream, keyFile string
	var allow []string
	var work handover
	c := &cobra.Command{
		Use:     "relay --listen ADDRESS --upstream URL --key-file FILE",
		Short:   "forward an agent's calls to the gateway and add its credential",
		GroupID: "parts",
		Long: `Forward HTTP requests to a gateway and add a credential to each: what stands
beside an agent that is not to hold its own key (a sidecar of a pod or a
container). Bodies pass as they come, in both directions. A gateway that is not
there is waited for, up to 30 s a request. With --take it also hands over what
the agent has left in its workspace, when it is told to end (SIGTERM).`,
		Example: `  fulgur relay --listen 127.0.0.1:41457 --upstream http://gateway:8080 --key-file /run/secrets/key
  fulgur relay --listen unix:/run/relay.sock --upstream http://gateway:8080 --key-file key --allow /proxy/rollout/r1/attempt/0/`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := sandbox.NewRelay(upstream)
			if err != nil {
				return usageErr(err)
			}
			defer r.Close()
			key, err := os.ReadFile(keyFile)
			if err != nil {
				return usageErr(fulgur.E(fulgur.KindNotFound, "read the credential", "name a file that holds it with --key-file", err))
			}
			r.Let(sandbox.Pass{Key: string(bytes.TrimSpace(key)), Paths: allow})
			network := "tcp"
			path, isUnix := strings.CutPrefix(addr, "unix:")
			if isUnix {
				network, addr = "unix", path
			}
			l, err := net.Listen(network, addr)
			if err != nil {
				return fulgur.E(fulgur.KindUnavailable, "listen on "+addr, "is the address taken?", err)
			}
			s := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
			done := make(chan error, 1)
			go func() { done <- s.Serve(sandbox.Few(l)) }()
			a.say("relaying %s to %s", l.Addr(), upstream)
			select {
			case err = <-done:
				return fmt.Errorf("serving the relay: %w", err)
			case <-c.Context().Done():
			}
			err = s.Close()
			if e := <-done; !errors.Is(e, http.ErrServerClosed) {
				err = errors.Join(err, e)
			}
			if work.dir != "" {
				err = errors.Join(err, work.leave(context.WithoutCancel(c.Context()), upstream, string(bytes.TrimSpace(key))))
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&addr, "listen", fmt.Sprintf("127.0.0.1:%d", sandbox.Port), "address to listen on, or unix:PATH")
	f.StringVar(&upstream, "upstream", "", "the gateway: URL, or unix:PATH")
	f.StringVar(&keyFile, "key-file", "", "file with the attempt's credential")
	work.flags(c)
	f.StringArrayVar(&allow, "allow", []string{"/"}, "paths that may be asked for, and what is below those that end in a slash (repeatable)")
	return c
}
