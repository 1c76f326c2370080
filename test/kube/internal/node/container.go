package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fulgur-rl/fulgur/test/kube/internal/image"
	"github.com/fulgur-rl/fulgur/test/kube/internal/sandbox"
)

// Pods with these annotations are handled as a test wants it.
const (
	// EvictAnnotation, set on a running pod, evicts it with the given message, as
	// a node under pressure does.
	EvictAnnotation = "kubebox.test/evict"
	// PullDelayAnnotation is how long pulling each image takes.
	PullDelayAnnotation = "kubebox.test/pull-delay"
	// PullErrorAnnotation is what a registry answers, for ever.
	PullErrorAnnotation = "kubebox.test/pull-error"
)

// container is one container of a pod.
type container struct {
	*podRun
	c    *v1.Container
	init bool
	i    int // its place among the statuses
}

func (k *container) sidecar() bool {
	return k.init && k.c.RestartPolicy != nil && *k.c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// set changes the container's status and publishes the pod.
func (k *container) set(change func(*v1.ContainerStatus)) {
	k.mu.Lock()
	change(k.statusLocked())
	k.mu.Unlock()
	k.publish()
}

func (k *container) statusLocked() *v1.ContainerStatus {
	if k.init {
		return &k.st.InitContainerStatuses[k.i]
	}
	return &k.st.ContainerStatuses[k.i]
}

func (k *container) waiting(reason, msg string) {
	k.set(func(s *v1.ContainerStatus) {
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: msg}}
	})
}

// run sees a container to its final end under the pod's restart policy, and says
// whether that was exit code 0. ctx ends it. started is called once, at its first start.
func (k *container) run(ctx context.Context, started func()) bool {
	policy := k.pod.Spec.RestartPolicy
	if k.sidecar() {
		policy = v1.RestartPolicyAlways
	}
	// A kubelet waits 10 s before the first restart. Tests have less patience.
	for backoff := 200 * time.Millisecond; ; backoff = min(2*backoff, 10*time.Second) {
		term := k.once(ctx, started)
		again := ctx.Err() == nil && (policy == v1.RestartPolicyAlways && (!k.init || k.sidecar() || term.ExitCode != 0) ||
			policy == v1.RestartPolicyOnFailure && term.ExitCode != 0)
		no := false
		k.set(func(s *v1.ContainerStatus) {
			s.State, s.Ready, s.Started = v1.ContainerState{Terminated: term}, k.init && term.ExitCode == 0, &no
			if again {
				s.LastTerminationState, s.RestartCount = s.State, s.RestartCount+1
				s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
					Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", backoff, k.c.Name, k.pod.Name)}}
			}
		})
		if !again {
			return term.ExitCode == 0
		}
		if !sleep(ctx, backoff) {
			return false
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// pull gets the image; while it cannot, the container waits, as long as ctx lasts.
func (k *container) pull(ctx context.Context) (image.Image, bool) {
	ref := k.c.Image
	if d, err := time.ParseDuration(k.pod.Annotations[PullDelayAnnotation]); err == nil && !sleep(ctx, d) {
		return image.Image{}, false
	}
	for backoff := 500 * time.Millisecond; ; backoff = min(2*backoff, 10*time.Second) {
		img, err := k.p.images.Open(ref)
		if msg := k.pod.Annotations[PullErrorAnnotation]; msg != "" {
			err = errors.New(msg)
		}
		switch {
		case err == nil:
			return img, true
		case errors.Is(err, image.ErrName):
			k.waiting("InvalidImageName", fmt.Sprintf("Failed to apply default image tag %q: %v", ref, err))
		case k.c.ImagePullPolicy == v1.PullNever:
			k.waiting("ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", ref))
		default:
			k.waiting("ErrImagePull", err.Error())
			if !sleep(ctx, backoff) {
				return img, false
			}
			k.waiting("ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %v", ref, err))
		}
		if !sleep(ctx, backoff) {
			return img, false
		}
	}
}

// config makes the environment; while it cannot, the container waits.
func (k *container) config(ctx context.Context, img image.Image) (map[string]string, bool) {
	for {
		env, err := environment(k.pod, k.c, img.Config.Env, k.p.service(), reader{ctx, k.p.cs, k.pod.Namespace})
		if err == nil {
			return env, true
		}
		if ctx.Err() == nil {
			k.waiting("CreateContainerConfigError", err.Error())
		}
		if !sleep(ctx, time.Second) {
			return nil, false
		}
	}
}

// once runs the container once.
func (k *container) once(ctx context.Context, started func()) *v1.ContainerStateTerminated {
	t := &v1.ContainerStateTerminated{StartedAt: metav1.Now(), ContainerID: "process://" + string(k.pod.UID) + "/" + k.c.Name}
	end := func(code int, reason, msg string) *v1.ContainerStateTerminated {
		t.ExitCode, t.Reason, t.Message, t.FinishedAt = int32(code), reason, msg, metav1.Now()
		return t
	}
	const never = "The container could not be located when the pod was terminated"
	img, ok := k.pull(ctx)
	if !ok {
		return end(137, "ContainerStatusUnknown", never)
	}
	env, ok := k.config(ctx, img)
	if !ok {
		return end(137, "ContainerStatusUnknown", never)
	}
	log, err := os.OpenFile(k.log(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return end(128, "StartError", err.Error())
	}
	defer func() { _ = log.Close() }()
	spec, group, err := k.spec(img, env)
	if err != nil {
		return end(128, "StartError", err.Error())
	}
	defer func() { _ = os.RemoveAll(spec.Scratch) }()
	defer k.p.groups.remove(group)
	cmd, err := sandbox.Start(k.p.initBin, spec, log, log)
	if err != nil {
		return end(128, "StartError", "failed to create containerd task: failed to create shim task: "+err.Error())
	}
	started()
	yes := true
	k.set(func(s *v1.ContainerStatus) {
		s.State, s.Ready, s.Started = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: t.StartedAt}}, true, &yes
		s.ContainerID, s.ImageID = t.ContainerID, k.c.Image
	})
	status := k.wait(ctx, cmd)
	code := status.ExitStatus()
	if status.Signaled() {
		t.Signal, code = int32(status.Signal()), 128+int(status.Signal())
	}
	reason := "Completed"
	if code != 0 {
		reason = "Error"
		if k.p.groups.killed(group) {
			reason = "OOMKilled"
		}
	}
	return end(code, reason, k.message(spec, log, code))
}

// wait waits for the end of a started container; when ctx ends it gets SIGTERM,
// and SIGKILL when the pod's grace is over. As process 1 it takes all others along.
func (k *container) wait(ctx context.Context, cmd *exec.Cmd) syscall.WaitStatus {
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-k.hard.Done():
			_ = cmd.Process.Kill()
			<-done
		}
	}
	return cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func (k *container) log() string { return filepath.Join(k.dir, k.c.Name+".log") }

// spec describes the container, and makes what it needs: the control group, the
// file of its termination message, the managed files of /etc.
func (k *container) spec(img image.Image, env map[string]string) (sandbox.Spec, string, error) {
	c, pod := k.c, k.pod
	s := sandbox.Spec{Root: img.Root, Hostname: hostname(pod), Cwd: c.WorkingDir, User: img.Config.User, HostPID: pod.Spec.HostPID,
		Scratch: filepath.Join(k.dir, c.Name+".fs"), Env: list(env), Argv: command(c, img.Config.Entrypoint, img.Config.Cmd, env)}
	if s.Cwd == "" {
		s.Cwd = img.Config.WorkingDir
	}
	end := filepath.Join(k.dir, c.Name+".end")
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		return s, "", err
	}
	if err := os.Chmod(end, 0o666); err != nil {
		return s, "", err
	}
	path := c.TerminationMessagePath
	if path == "" {
		path = "/dev/termination-log"
	}
	hosts, resolv, err := etc(pod, k.dir)
	if err != nil {
		return s, "", err
	}
	s.Binds = []sandbox.Bind{{Src: end, Dst: path}, {Src: hosts, Dst: "/etc/hosts"}, {Src: resolv, Dst: "/etc/resolv.conf"}}
	for _, m := range c.VolumeMounts {
		src, ok := k.vols[m.Name]
		if !ok {
			return s, "", fmt.Errorf("volume %q is not there", m.Name)
		}
		if m.SubPath != "" {
			src = filepath.Join(src, m.SubPath)
			if _, err := os.Stat(src); os.IsNotExist(err) {
				if err := os.MkdirAll(src, 0o777); err != nil {
					return s, "", err
				}
			}
		}
		s.Binds = append(s.Binds, sandbox.Bind{Src: src, Dst: m.MountPath, ReadOnly: m.ReadOnly})
	}
	security(&s, pod.Spec.SecurityContext, c.SecurityContext)
	group, err := k.p.groups.make(string(pod.UID)+"."+c.Name, c.Resources.Limits.Memory().Value())
	if err != nil {
		return s, "", err
	}
	if group != "" {
		s.Cgroups = []string{group}
	}
	return s, group, nil
}

// security applies what a container's and a pod's security context say.
func security(s *sandbox.Spec, p *v1.PodSecurityContext, c *v1.SecurityContext) {
	if p == nil {
		p = &v1.PodSecurityContext{}
	}
	if c == nil {
		c = &v1.SecurityContext{}
	}
	first := func(a, b *int64) *int64 {
		if a != nil {
			return a
		}
		return b
	}
	if uid := first(c.RunAsUser, p.RunAsUser); uid != nil {
		s.User = fmt.Sprint(*uid)
	}
	if gid := first(c.RunAsGroup, p.RunAsGroup); gid != nil {
		user, _, _ := strings.Cut(s.User, ":")
		if user == "" {
			user = "0"
		}
		s.User = fmt.Sprint(user, ":", *gid)
	}
	for _, g := range p.SupplementalGroups {
		s.Groups = append(s.Groups, int(g))
	}
	if p.FSGroup != nil {
		s.Groups = append(s.Groups, int(*p.FSGroup))
	}
	s.ReadOnly = c.ReadOnlyRootFilesystem != nil && *c.ReadOnlyRootFilesystem
	s.NoNew = c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation
	if c.Privileged == nil || !*c.Privileged {
		s.Keep = capabilities(c.Capabilities)
	}
}

// usual are the capabilities of a container that asks for nothing, as containerd gives them.
func usual() map[string]int {
	return map[string]int{"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FSETID": unix.CAP_FSETID, "FOWNER": unix.CAP_FOWNER,
		"MKNOD": unix.CAP_MKNOD, "NET_RAW": unix.CAP_NET_RAW, "SETGID": unix.CAP_SETGID, "SETUID": unix.CAP_SETUID, "SETFCAP": unix.CAP_SETFCAP,
		"SETPCAP": unix.CAP_SETPCAP, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "SYS_CHROOT": unix.CAP_SYS_CHROOT, "KILL": unix.CAP_KILL,
		"AUDIT_WRITE": unix.CAP_AUDIT_WRITE}
}

func capabilities(c *v1.Capabilities) []int {
	all := usual()
	all["NET_ADMIN"], all["SYS_ADMIN"], all["SYS_PTRACE"] = unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE
	keep := usual()
	if c != nil {
		for _, d := range c.Drop {
			if delete(keep, strings.TrimPrefix(string(d), "CAP_")); d == "ALL" {
				clear(keep)
			}
		}
		for _, a := range c.Add {
			name := strings.TrimPrefix(string(a), "CAP_")
			if n, ok := all[name]; ok {
				keep[name] = n
			}
		}
	}
	out := make([]int, 0, len(keep))
	for _, n := range keep {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// message is the container's termination message.
func (k *container) message(s sandbox.Spec, log *os.File, code int) string {
	const most = 4096
	b, _ := os.ReadFile(s.Binds[0].Src)
	if len(b) == 0 && code != 0 && k.c.TerminationMessagePolicy == v1.TerminationMessageFallbackToLogsOnError {
		size, _ := log.Seek(0, io.SeekEnd)
		b = make([]byte, min(size, 2048))
		n, _ := log.ReadAt(b, size-int64(len(b)))
		b = b[:n]
	}
	return strings.ToValidUTF8(string(b[:min(len(b), most)]), "\uFFFD")
}
