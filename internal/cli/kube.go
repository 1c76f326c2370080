package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/grade"
	"github.com/fulgur-rl/fulgur/internal/controller/kube"
	"github.com/fulgur-rl/fulgur/internal/trainer/data"
)

// newKubernetes makes the runner of Jobs.
func newKubernetes(_ context.Context, j controllerJob) (controller.Runner, error) {
	o, err := kubeOptions(j.file)
	if err != nil {
		return nil, err
	}
	o.Run, o.Scope, o.Log = string(j.run), kubeScope(j), j.log
	o.Gateway, o.Inputs = cmp.Or(j.file.Runner.AgentURL, j.url), sampleInputs(j.file)
	o.Tell = j.say
	o.State, o.KeepWork = j.dir.attempts(), keep(j.file.Retention.Attempts)
	o.LogCap, o.Logs = j.file.Logs.AgentBytes, o.KeepWork
	if len(j.file.Reward.Command) == 0 {
		return kube.New(o)
	}
	var ok bool
	if o.Artifacts, ok = j.store.(kube.Artifacts); !ok {
		return nil, fulgur.E(fulgur.KindUnsupported, "set up the grader", "this store keeps no artifacts", nil)
	}
	if j.secret == "" {
		return nil, usageErr(fulgur.E(fulgur.KindInvalid, "set up the grader", "tests of what agents leave reach the server, which takes everybody for a trainer: give it a key (fulgur serve --key)", nil))
	}
	if o.Grading, err = containerGrading(j); err != nil {
		return nil, err
	}
	r, err := kube.New(o)
	if err != nil {
		closeBoxes(gradingBoxes(o.Grading)...)
		return nil, err // no nil *Runner in the interface
	}
	return r, nil
}

// kubeScope names what a run's Jobs belong to. Controllers of one run may be on
// several machines, in turn, and runs of one name on several machines may share a
// namespace: what tells them apart is where their gateway is.
func kubeScope(j controllerJob) string {
	switch {
	case j.file.Runner.AgentURL != "":
		return j.file.Runner.AgentURL + "#" + string(j.run)
	case j.leave: // of a server's
		return j.url + "#" + string(j.run)
	}
	host, _ := os.Hostname()
	return host + ":" + scope(j.dir, j.run)
}

// kubeOptions reads what the run file says of Jobs.
func kubeOptions(f *runFile) (kube.Options, error) {
	k := f.Runner.Kubernetes
	o := kube.Options{
		Kubeconfig: f.resolve(k.Kubeconfig), Context: k.Context, Namespace: f.Runner.Namespace, Agent: k.AgentContainer,
		Keep: time.Duration(k.Keep), Lease: time.Duration(k.Lease),
		Isolated: k.Isolation == "policy", ProbeImage: k.ProbeImage, GatewayPods: k.GatewayPods, GatewayNamespace: k.GatewayNamespace,
		Image: f.Runner.Image, Command: config.Expand(f.Agent.Command, ""), Memory: int64(f.Runner.Limits.Memory),
		Prepull: k.Prepull, Env: f.Agent.Input.Env, InputFile: f.Agent.Input.File,
	}
	if o.Kubeconfig != "" {
		if _, err := os.Stat(o.Kubeconfig); err != nil {
			return o, usageErr(fulgur.E(fulgur.KindNotFound, "find the Kubernetes cluster", "runner.kubernetes.kubeconfig: "+o.Kubeconfig+" can't be read: correct it, or leave it out for KUBECONFIG, the cluster that this runs in, or ~/.kube/config", err))
		}
	}
	graded := len(f.Reward.Command) > 0
	if k.Relay || graded { // it takes the workspace
		o.RelayImage = cmp.Or(k.RelayImage, k.ProbeImage)
	}
	if k.Pull != "auto" {
		o.PullPolicy = kube.PullPolicy(k.Pull)
	}
	if o.Workspace = f.Agent.Workspace; graded {
		o.Grading = &grade.Options{Command: f.Reward.Command, Tests: f.Reward.Tests, Size: int64(f.Reward.Size)}
	}
	if f.Runner.JobTemplate == "" {
		return o, nil
	}
	path := f.resolve(f.Runner.JobTemplate)
	src, err := os.ReadFile(path)
	if err != nil {
		return o, usageErr(fulgur.E(fulgur.KindInvalid, "check the runner", "the Job template can't be read: name a file (runner.job_template)", err))
	}
	if o.Template, err = kube.ParseTemplate(f.Runner.JobTemplate, string(src)); err != nil {
		return o, usageErr(err)
	}
	return o, nil
}

// sampleRows is how many rows of each file of data a Job is made of, on trial, when a
// run is checked.
const sampleRows = 2000

// sampleInputs are the inputs of the data's first rows, as agents get them; none where
// the data are not here (a controller's) or wrong, which whoever checks them says.
func sampleInputs(r *runFile) (out []json.RawMessage) {
	d, err := readData(r)
	if err != nil {
		return nil
	}
	for _, rows := range [][]data.Row{d.train.Rows, d.validation, d.test} {
		for _, row := range rows[:min(sampleRows, len(rows))] {
			out = append(out, controller.Withhold(row.Input, withheld(r.Reward)))
		}
	}
	return out
}

// checkKubernetes makes the Jobs of each file's first rows, and looks at them as the runner
// will: what is wrong with the template, or with a row, shows before anything starts.
func checkKubernetes(_ context.Context, r *runFile) error {
	o, err := kubeOptions(r)
	if err != nil {
		return err
	}
	d, err := readData(r)
	if err != nil {
		return nil // whoever checks the data says so
	}
	o.Gateway = cmp.Or(r.Runner.AgentURL, "http://gateway") // on trial any will do
	trial, err := kube.NewTrial(o)
	if err != nil {
		return usageErr(err)
	}
	for _, file := range []struct {
		name string
		rows []data.Row
	}{{r.Data.Train, d.train.Rows}, {r.Data.Validation, d.validation}, {r.Data.Test, d.test}} {
		for _, row := range file.rows[:min(sampleRows, len(file.rows))] {
			if err := trial.Job(controller.Withhold(row.Input, withheld(r.Reward))); err != nil {
				return usageErr(fulgur.E(fulgur.KindOf(err), "check the runner", fmt.Sprintf("the Job of row %d of %s: %s", row.Line, file.name, err), nil))
			}
		}
	}
	return nil
}
