package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
)

// Options say what Jobs to make, and where.
type Options struct {
	Kubeconfig string // file; "": KUBECONFIG, the cluster this runs in, or ~/.kube/config
	Context    string // of the kubeconfig; "": its current one
	Namespace  string // "": default
	Run        string // the run's name, for people who look at labels
	Scope      string // what the Jobs belong to, such as the store's address and the run; the same after a restart

	Template  *Template         // nil: a built-in one of Image and Command
	Image     string            // of the built-in template
	Command   []string          // of the built-in template; none: the image's own
	Memory    int64             // bytes, of the built-in template; 0: no limit
	Agent     string            // the container that is the agent; "": the one called agent, else the first
	Env       map[string]string // NAME: literal, or a path such as input.question
	InputFile bool              // the input is a file, which FULGUR_INPUT_FILE names

	// RelayImage, with the program fulgur, is of a sidecar that adds the credential to
	// what the agent asks Gateway for, which never holds it. "": the agent holds it.
	RelayImage   string
	RelayCommand []string // in place of the image's entry point
	Gateway      string   // URL: what the addresses begin with that agents are given

	// Workspace gives each agent an empty folder to work in. Grading has a program grade what
	// is left in it, which comes by Artifacts (nil: a cluster is only looked at); copies are
	// kept below State. It needs a relay.
	Workspace bool
	Grading   *grade.Options // nil: nothing is graded
	Artifacts Artifacts
	State     string          // folder, also of logs; "": none is kept
	KeepWork  controller.Keep // of which attempts what they left stays with Artifacts when it is graded; "": of all
	LogCap    int             // bytes of an agent's log that are kept, beginning and end; 0: 1 MiB
	Logs      controller.Keep // of which attempts they are

	PullPolicy corev1.PullPolicy // of the built-in template; "": Kubernetes' own rule

	Grace      time.Duration // between the request to end and force, where the template says nothing; 0: 5 s
	ImageLimit time.Duration // how long a pull may fail before the attempt does; 0: 20 s
	Keep       time.Duration // how long a Job stays after its end is on record; 0: it goes at once
	Lease      time.Duration // how long a run's Jobs outlive its last controller; 0: 10 min
	QPS        float64       // requests per second at most; 0: 50

	// Inputs are some that attempts will have: of them the images are known that nodes
	// fetch before the first rollout, if they are no more than Prepull (else those that
	// all need), and where a template's agents may go.
	Inputs  []json.RawMessage
	Prepull int
	// BusyLimit is how long a registry that throttles or does not answer is waited for
	// then; 0: 2 min.
	BusyLimit time.Duration

	// Isolated gives the run a NetworkPolicy, which Prove shows to hold.
	Isolated         bool
	ProbeImage       string            // with the program fulgur; "": Prove tries nothing
	ProbeCommand     []string          // in place of the image's entry point
	ProbeLimit       time.Duration     // for all nodes together; 0: 5 min
	GatewayPods      map[string]string // labels, where the gateway runs in the cluster
	GatewayNamespace string            // "": Namespace

	Log  *slog.Logger                     // nil: nothing is logged
	Tell func(format string, args ...any) // what people should see at once; nil: it is logged
}

// maker makes the objects of attempts.
type maker struct {
	Options
	scope string            // as a label
	alias *corev1.HostAlias // the gateway's name, where DNS is closed; set before the first Job

	sampled sync.Once
	first   *corev1.PodSpec // see sample

	mu        sync.Mutex
	templates map[string]*Template // v1's, one a rollout, by their text
}

// newMaker checks the options and fills them in.
func newMaker(o Options) (*maker, error) {
	const op = "set up the Kubernetes runner"
	switch {
	case o.Template == nil && o.Image == "":
		return nil, fulgur.E(fulgur.KindInvalid, op, "no image and no template: set runner.image or runner.job_template", nil)
	case o.Template == nil && !imageName.MatchString(o.Image):
		return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("runner.image: %q is no image's name ([registry/]name[:tag])", o.Image), nil)
	}
	if o.RelayImage != "" && !imageName.MatchString(o.RelayImage) {
		return nil, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("runner.kubernetes.relay_image: %q is no image's name ([registry/]name[:tag])", o.RelayImage), nil)
	}
	if o.RelayImage != "" && o.Gateway == "" {
		return nil, fulgur.E(fulgur.KindInvalid, op, "a relay needs the gateway's address: set runner.agent_url", nil)
	}
	if o.Grading != nil && (o.RelayImage == "" || !o.Workspace) {
		return nil, fulgur.E(fulgur.KindInvalid, op, "reward.command grades what a sidecar takes of the agent's workspace: set agent.workspace, and runner.kubernetes.relay_image or probe_image to an image with the program fulgur", nil)
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&o.Grace, 5 * time.Second}, {&o.ImageLimit, 20 * time.Second}, {&o.Lease, 10 * time.Minute}, {&o.ProbeLimit, 5 * time.Minute}, {&o.BusyLimit, 2 * time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Tell == nil {
		log := o.Log
		o.Tell = func(format string, args ...any) { log.Info(fmt.Sprintf(format, args...)) }
	}
	return &maker{Options: o, scope: hash(o.Scope)[:20]}, nil
}

// maxTemplates bounds what is remembered of v1's templates: a run has one or two.
const maxTemplates = 64

// compiled parses a template that came with a rollout.
func (o *maker) compiled(source string) (*Template, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.templates[source]; t != nil {
		return t, nil
	}
	t, err := ParseTemplate("config.k8s.job_template", source)
	if err != nil {
		return nil, err
	}
	if o.templates == nil || len(o.templates) >= maxTemplates {
		o.templates = map[string]*Template{}
	}
	o.templates[source] = t
	return t, nil
}

// PullPolicy says when nodes fetch an image.
type PullPolicy = corev1.PullPolicy
