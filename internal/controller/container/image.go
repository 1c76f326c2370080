package container

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
)

// pullPatience is how long fetching an image may take.
const pullPatience = 30 * time.Minute

// haveImage makes sure that the image is here, and the program in it.
func (r *Runner) haveImage(ctx context.Context) error {
	const op = "look at the image"
	env, entry, err := r.image(ctx)
	if err != nil && classify(err) == troubleImage {
		if r.Pull == "never" {
			return fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("the image %s is not here: build or load it (%s load --input FILE), or let runner.container.pull fetch it", r.Image, r.client.path), err)
		}
		if err := r.pull(ctx); err != nil {
			return fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("the image %s is not here and cannot be fetched: is runner.image right, and may this user have it?", r.Image), err)
		}
		env, entry, err = r.image(ctx)
	}
	if err != nil {
		return fulgur.E(fulgur.KindUnavailable, op, "the container program does not say what the image "+r.Image+" is", err)
	}
	r.entry = r.Command
	if len(r.entry) == 0 {
		r.entry = entry
	}
	if len(r.entry) == 0 {
		return fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("the image %s names no program: set agent.command", r.Image), nil)
	}
	name, err := r.look(ctx, r.entry[0])
	if err != nil {
		return err
	}
	defer r.discard(name)
	if err := r.haveProgram(ctx, name, "agent.command", r.entry[0], env); err != nil || r.grader == nil || len(r.grader.Tests) == 0 {
		return err
	}
	return r.haveProgram(ctx, name, "reward.tests", r.grader.Tests[0], env)
}

// pull fetches the image.
func (r *Runner) pull(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pullPatience)
	defer cancel()
	r.Log.Info("fetching an image", "image", r.Image)
	cmd := r.client.command(ctx, "pull", "--quiet", r.Image)
	bad := controller.NewLogBuffer(clientTalk)
	cmd.Stderr = bad
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errors.New(lastLine(string(bad.Bytes())))
	}
	return nil
}

// image returns the environment and the program of the image.
func (r *Runner) image(ctx context.Context) (env, program []string, err error) {
	out, err := r.client.run(ctx, "image", "inspect", r.Image)
	if err != nil {
		return nil, nil, err
	}
	var all []struct {
		Config struct {
			Env             []string
			Entrypoint, Cmd []string
		}
	}
	if err := json.Unmarshal(out, &all); err != nil || len(all) == 0 {
		return nil, nil, fmt.Errorf("reading what image inspect says: %w", err)
	}
	c := all[0].Config
	return c.Env, append(c.Entrypoint, c.Cmd...), nil
}

// noInitText is what clients say where the small init program is missing.
var noInitText = regexp.MustCompile(`(?i)init binary|docker-init|catatonit`)

// look makes a container that is never started. It shows whether containers can
// have a small init as their first process: without one the agent is process 1,
// to which the kernel passes no signal that it has no handler for.
func (r *Runner) look(ctx context.Context, program string) (name string, err error) {
	name = "fulgur-" + r.scope + "-look-" + strings.ToLower(rand.Text()[:8])
	args := []string{"create", "--name", name, "--pull", "never", "--network", "none", "--label", labelScope + "=" + r.scope, "--entrypoint", program}
	r.init = true
	if _, err = r.client.run(ctx, append(args, "--init", r.Image)...); err != nil && noInitText.MatchString(err.Error()) {
		r.init = false
		r.Log.Warn("containers get no init process, so an agent that does not handle SIGTERM is ended by force after its grace: install catatonit (Podman) or tini (Docker)", "client", err)
		_, err = r.client.run(ctx, append(args, r.Image)...)
	}
	if err != nil {
		r.discard(name)
		return "", fulgur.E(fulgur.KindUnavailable, "make a container", "no container of the image "+r.Image+" can be made", err)
	}
	return name, nil
}

// haveProgram looks in the container of look for a program that a key of the run file
// names. A mount may bring it, so what is below one is not looked for.
func (r *Runner) haveProgram(ctx context.Context, name, key, program string, env []string) error {
	op := "look for the program of " + key
	places := []string{program}
	if !strings.Contains(program, "/") {
		search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		for _, kv := range env {
			if p, ok := strings.CutPrefix(kv, "PATH="); ok {
				search = p
			}
		}
		places = nil
		for dir := range strings.SplitSeq(search, ":") {
			places = append(places, path.Join(dir, program))
		}
	} else if !strings.HasPrefix(program, "/") {
		return nil // relative to a folder that the image says
	}
	for _, m := range r.Mounts {
		parts := strings.Split(m, ":")
		for _, p := range places {
			if len(parts) > 1 && (p == parts[1] || strings.HasPrefix(p, strings.TrimSuffix(parts[1], "/")+"/")) {
				return nil
			}
		}
	}
	for _, p := range places {
		switch ok, err := r.executable(ctx, name, p); {
		case err == nil && ok:
			return nil
		case err == nil && len(places) == 1:
			return fulgur.E(fulgur.KindForbidden, op, fmt.Sprintf("%s in the image %s cannot be executed: it wants an x bit", p, r.Image), nil)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
	return fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("the program %q is not in the image %s: correct %s", program, r.Image, key), nil)
}

// executable reads the first header of a file's archive: that says its mode,
// without its bytes.
func (r *Runner) executable(ctx context.Context, name, file string) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := r.client.command(ctx, "cp", "--follow-link", name+":"+file, "-")
	if r.client.podman {
		cmd = r.client.command(ctx, "cp", name+":"+file, "-") // it follows links by itself
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	h, err := tar.NewReader(out).Next()
	cancel()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if err != nil {
		return false, err
	}
	return h.Typeflag == tar.TypeReg && h.Mode&0o111 != 0 || h.Typeflag == tar.TypeSymlink, nil
}
