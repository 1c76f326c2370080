package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api/client"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
)

// handover is what a relay does beside relaying: when the agent has ended, which is when it
// is told to end itself, it hands the agent's workspace over to the gateway.
type handover struct {
	dir     string // "": it does not
	size    int64
	rollout string
	attempt string
}

func (h *handover) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&h.dir, "take", "", "the agent's workspace: when told to end, leave its files with the gateway as the attempt's artifact workspace")
	f.Int64Var(&h.size, "take-bytes", 256<<20, "most bytes of such files")
	f.StringVar(&h.rollout, "rollout", "", "the rollout whose agent's workspace it is")
	f.StringVar(&h.attempt, "attempt", "", "the attempt")
}

const handoverPause = 500 * time.Millisecond

// artifactLimit is the server's bound of a flag's: 0 is nothing, and less any.
func artifactLimit(n int64) int64 {
	switch {
	case n == 0:
		return -1
	case n < 0:
		return math.MaxInt64
	}
	return n
}

// artifactBytes is what attempts of a run may leave with its server: something where
// their workspaces come that way.
func artifactBytes(f *runFile) int64 {
	if f.Runner.Kind != "kubernetes" || len(f.Reward.Command) == 0 {
		return -1
	}
	return 2 * kube.WorkBytes(int64(f.Reward.Size)) // beside its own what a tar file adds
}

// leave hands the workspace over, and tries until it is there, or whoever started this ends it.
func (h *handover) leave(ctx context.Context, upstream, credential string) error {
	c, err := client.New(upstream, credential, client.Options{RetryFor: -1})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	key := fulgur.AttemptKey{Rollout: fulgur.RolloutID(h.rollout), Attempt: fulgur.AttemptID(h.attempt)}
	for {
		why, err := h.put(ctx, c, key)
		if why != nil { // of what the agent left: that is told instead
			_, _, err = c.PutArtifact(ctx, key, kube.RefusedArtifact, "", strings.NewReader(why.Error()), 0)
		}
		switch fulgur.KindOf(err) {
		case "":
			return nil
		case fulgur.KindUnavailable, fulgur.KindTimeout, fulgur.KindInternal, fulgur.KindUpstream, fulgur.KindExhausted:
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(handoverPause):
		}
	}
}

// put sends the workspace as it is packed. why is what is wrong with it.
func (h *handover) put(ctx context.Context, c *client.Client, key fulgur.AttemptKey) (why, err error) {
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := grade.Pack(pw, h.dir, h.size)
		packed <- err
		_ = pw.CloseWithError(err)
	}()
	_, _, err = c.PutArtifact(ctx, key, kube.WorkArtifact, "", pr, 0)
	_ = pr.Close()
	if why = <-packed; errors.Is(why, io.ErrClosedPipe) {
		why = nil
	}
	if fulgur.KindOf(err) == fulgur.KindTooLarge {
		why = err
	}
	return why, err
}

// fetchCopyCommand is what runs before tests in their pod: it fetches the copy that they
// are of.
func (a *app) fetchCopyCommand() *cobra.Command {
	var upstream, keyFile, rollout, attempt, artifact, into string
	c := &cobra.Command{
		Use: "fetch-copy", Hidden: true, Args: cobra.NoArgs,
		Short: "unpack an artifact of an attempt into a folder that anybody may write",
		RunE: func(c *cobra.Command, _ []string) error {
			key, err := os.ReadFile(keyFile)
			if err != nil {
				return usageErr(fulgur.E(fulgur.KindNotFound, "read the key", "name a file that holds it with --key-file", err))
			}
			cl, err := client.New(upstream, strings.TrimSpace(string(key)), client.Options{})
			if err != nil {
				return usageErr(err)
			}
			defer func() { _ = cl.Close() }()
			_, body, err := cl.Artifact(c.Context(), fulgur.AttemptKey{Rollout: fulgur.RolloutID(rollout), Attempt: fulgur.AttemptID(attempt)}, artifact)
			if err != nil {
				return err
			}
			defer func() { _ = body.Close() }()
			if err := grade.Unpack(body, into, 0); err != nil {
				return fulgur.E(fulgur.KindInternal, "unpack "+artifact, err.Error(), err)
			}
			if err := openUp(into); err != nil {
				return fulgur.E(fulgur.KindInternal, "open "+into, err.Error(), err)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&upstream, "upstream", "", "the gateway: URL")
	f.StringVar(&keyFile, "key-file", "", "file with the artifact's own key")
	f.StringVar(&rollout, "rollout", "", "the rollout")
	f.StringVar(&attempt, "attempt", "", "the attempt")
	f.StringVar(&artifact, "artifact", "", "the artifact")
	f.StringVar(&into, "into", "", "the folder")
	return c
}

// openUp lets whoever the tests run as write what is in a folder.
func openUp(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o666
		if d.IsDir() {
			mode = 0o777
		}
		if err := os.Chmod(name, mode); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}
