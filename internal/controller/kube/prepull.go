package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

const (
	pullLimit  = 30 * time.Minute // for the images of one batch of nodes
	pullUnseen = 30 * time.Second // how long the scheduler may say no to a pod that is to fetch images
	tellEvery  = 10 * time.Second

	pullVolume = "fulgur-pull"
	pullFolder = "/fulgur-pull"
)

// Image is one that the pods of attempts are made of.
type Image struct {
	Name   string
	Policy corev1.PullPolicy
	Of     int // inputs whose pod has it
}

// Images are the images of the attempts' pods, by how many of Inputs need them, and
// how many inputs were looked at. Inputs of which no Job can be made are left out.
func (o *maker) Images() (all []Image, inputs int) {
	for _, spec := range o.pods() {
		inputs++
		seen := map[string]bool{}
		for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers, {{Image: o.RelayImage}}} {
			for _, c := range list {
				if c.Image == "" || seen[c.Image] {
					continue
				}
				seen[c.Image] = true
				i := slices.IndexFunc(all, func(x Image) bool { return x.Name == c.Image })
				if i < 0 {
					i, all = len(all), append(all, Image{Name: c.Image, Policy: c.ImagePullPolicy})
				}
				all[i].Of++
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Image) int { return cmp.Compare(b.Of, a.Of) })
	return all, inputs
}

// pods are those of the inputs; of the built-in template one, which all have.
func (o *maker) pods() (out []*corev1.PodSpec) {
	inputs := o.Inputs
	switch {
	case o.Template == nil:
		inputs = []json.RawMessage{nil}
	case len(inputs) == 0:
		inputs = []json.RawMessage{json.RawMessage("{}")}
	}
	for _, in := range inputs {
		if job, err := o.manifest("probe", controller.Execution{Input: in}); err == nil {
			out = append(out, &job.Spec.Template.Spec)
		}
	}
	return out
}

// sample is the pod of the template with the first input that it takes; nil: there is none.
func (o *maker) sample() *corev1.PodSpec {
	o.sampled.Do(func() {
		if all := o.pods(); o.Template != nil && len(all) > 0 {
			o.first = all[0]
		}
	})
	return o.first
}

// ahead are the images that nodes fetch before the first rollout: all, if they are no
// more than Prepull, else those that every input needs. note says what is left out.
func (o *maker) ahead() (images []Image, note string) {
	all, inputs := o.Images()
	all = slices.DeleteFunc(all, func(i Image) bool { return i.Name == o.ProbeImage }) // which the probe has fetched
	if len(all) <= o.Prepull {
		return all, ""
	}
	for _, i := range all {
		if i.Of == inputs && len(images) < o.Prepull {
			images = append(images, i)
		}
	}
	if o.Prepull > 0 {
		note = fmt.Sprintf("%d of the %d images of agents are not fetched ahead: more than runner.kubernetes.prepull (%d)", len(all)-len(images), len(all), o.Prepull)
	}
	return images, note
}

// Pulled is what came of fetching images ahead.
type Pulled struct {
	Images []Image
	Nodes  int
	Notes  []string // what was left out or did not work, though the run may start
}

// prepull has nodes fetch the agents' images, and returns when they have. An error
// names an image that cannot be had. A node that takes no pod now is left out.
func (r *Runner) prepull(ctx context.Context, mark string, nodes []string) (Pulled, error) {
	images, note := r.ahead()
	out := Pulled{Images: images}
	remark := func(notes ...string) {
		out.Notes = append(out.Notes, notes...)
		for _, n := range notes {
			r.Tell("%s", n)
		}
	}
	if note != "" {
		remark(note)
	}
	if len(images) == 0 || len(nodes) == 0 {
		return out, nil
	}
	r.Tell("fetching %s to %s before the first rollout", count(len(images), "image"), count(len(nodes), "node"))
	at := 0
	for batch := range slices.Chunk(nodes, mostAtOnce) {
		done, notes, err := r.pullBatch(ctx, mark, at, batch, images)
		remark(notes...)
		out.Nodes += done
		if err != nil {
			return out, err
		}
		if at += len(batch); at < len(nodes) {
			r.Tell("%d of %d nodes were asked to fetch the images", at, len(nodes))
		}
	}
	if out.Nodes == 0 && len(out.Notes) > 0 {
		return out, nil // why has been told
	}
	r.Tell("%s fetched %s", count(out.Nodes, "node"), count(len(images), "image"))
	return out, nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// pullBatch has some nodes fetch the images at once.
func (r *Runner) pullBatch(ctx context.Context, mark string, first int, nodes []string, images []Image) (done int, notes []string, err error) {
	const op = "fetch the agents' images"
	round, quota := mark+"-p"+strconv.Itoa(first), ""
	for i, node := range nodes {
		err := r.sendProbe(ctx, r.pullJob(round, strconv.Itoa(i), node, images))
		if err != nil && quotaMessage(err.Error()) {
			quota = fmt.Sprintf("%s fetched nothing ahead, for a quota leaves no room: what comes there fetches its own", count(len(nodes)-i, "node"))
			nodes = nodes[:i]
			break
		}
		if err != nil {
			return 0, nil, fulgur.E(kindOf(err), op, "the cluster takes no Job that fetches images; runner.kubernetes.prepull: 0 leaves that to each attempt", err)
		}
	}
	s := &stream[corev1.Pod]{c: r.c, path: r.c.path("v1/pods"), selector: labelProbe + "=" + round, log: r.log}
	bad := map[string]time.Time{} // since when, by pod
	unseen := patience{limit: pullUnseen}
	told, begin := time.Now(), time.Now()
	for {
		pods, _, err := s.all(ctx)
		if err != nil {
			return 0, nil, fulgur.E(fulgur.KindUnavailable, op, "the pods that fetch images could not be watched", err)
		}
		over, placed, why := 0, 0, ""
		if done, notes = 0, notes[:0]; quota != "" {
			notes = append(notes, quota)
		}
		for i := range pods {
			p := &pods[i]
			if p.Spec.NodeName == "" {
				continue
			}
			placed++
			state := look(view{pod: p, agent: probeName, now: time.Now(), badSince: bad[p.Name], limit: r.ImageLimit})
			switch x := state.exit; {
			case x != nil && x.Failure == plan.ReasonImage:
				return 0, nil, fulgur.E(fulgur.KindInvalid, op, "on node "+p.Spec.NodeName+" "+x.Message, nil)
			case x != nil:
				over++
				if x.Failure == "" && x.Code == 0 {
					done++
				} else {
					notes = append(notes, fmt.Sprintf("on node %s not all images were fetched ahead: %s", p.Spec.NodeName, cmp.Or(x.Message, fmt.Sprintf("exit code %d", x.Code))))
				}
			case state.image && bad[p.Name].IsZero():
				bad[p.Name] = time.Now()
			case state.image && time.Since(bad[p.Name]) >= r.BusyLimit:
				return 0, nil, fulgur.E(fulgur.KindUnavailable, op, "on node "+p.Spec.NodeName+" "+state.why+"; if its registry is busy, try again later, or leave it to the attempts (runner.kubernetes.prepull: 0)", nil)
			case !state.image:
				delete(bad, p.Name)
			}
			why = cmp.Or(state.why, why)
		}
		left := len(nodes) - placed
		if late := unseen.over(left > 0 && over == placed); over == len(nodes) || late || time.Since(begin) > pullLimit {
			if left > 0 {
				note := fmt.Sprintf("%s took no pod that fetches images: what comes there fetches its own", count(left, "node"))
				if blocked := r.quotaOf(ctx, round); blocked != "" && len(pods) < len(nodes) {
					note += "; a quota left no room: " + blocked
				}
				notes = append(notes, note)
			}
			return done, notes, nil
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			if len(pods) < len(nodes) {
				if blocked := r.quotaOf(ctx, round); blocked != "" {
					why = "a quota leaves the others no room yet: " + blocked
				}
			}
			r.Tell("%d of %d nodes have the images so far; %s", done, len(nodes), cmp.Or(why, "the others are still fetching"))
		}
		if !pause(ctx, probeEvery) {
			return done, nil, context.Cause(ctx)
		}
	}
}

// pullJob is a pod on one node with a container of each image, one after the other
// (so that it asks for no more than one of them does). An image need not have a
// program that ends well: they run a copy of the probe's.
func (r *Runner) pullJob(round, name, node string, images []Image) *batchv1.Job {
	mount := []corev1.VolumeMount{{Name: pullVolume, MountPath: pullFolder}}
	const program = pullFolder + "/fulgur"
	pod := corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "program", Image: r.ProbeImage, Command: r.ProbeCommand, Args: []string{ProbeCommand, "--install", program}, VolumeMounts: mount}},
		Containers:     []corev1.Container{{Name: probeName, Image: r.ProbeImage, Command: r.ProbeCommand, Args: []string{"version"}}},
		Volumes:        []corev1.Volume{{Name: pullVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		Affinity:       &corev1.Affinity{NodeAffinity: affinityTo([]corev1.NodeSelectorRequirement{nodeName(node, corev1.NodeSelectorOpIn)})},
	}
	for i, image := range images {
		pod.InitContainers = append(pod.InitContainers, corev1.Container{Name: "image-" + strconv.Itoa(i), Image: image.Name, ImagePullPolicy: image.Policy,
			Command: []string{program, "version"}, VolumeMounts: mount})
	}
	return r.probing(round, name, pod, pullLimit)
}
