package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/config"
	"github.com/fulgur-rl/fulgur/internal/trainer"
	"github.com/fulgur-rl/fulgur/internal/trainer/schedule"
	"github.com/fulgur-rl/fulgur/internal/trainer/stats"
)

// dossierFormat is the format of dossier.json.
const dossierFormat = 1

// dossier is dossier.json: what a run was made of and what came out, so that it can
// be run again and be told whether the same came out. Hashes are SHA-256 in hex.
type dossier struct {
	Format   int      `json:"format"`
	Run      string   `json:"run"`
	Dir      string   `json:"dir"`    // the run file's folder: what relative paths are relative to
	Config   string   `json:"config"` // the effective run file
	Seed     int64    `json:"seed"`
	Threads  int      `json:"threads"` // workers of the engine
	Bitwise  bool     `json:"bitwise"` // the same bits come out each time: one worker, and a schedule that time does not steer
	Kernels  string   `json:"kernels"`
	BuildEnv []string `json:"build_env,omitempty"` // further environment of agent.build
	Versions versions `json:"versions"`

	Model   digest            `json:"model"`
	Data    map[string]digest `json:"data"`    // by key: train, validation, test
	Harness digest            `json:"harness"` // the agent's program and the files its command names; or its image, or its Job's template

	Outcome outcome `json:"outcome"`
	// Seeds are the runs of other seeds that a reproduction made, and Spread what
	// they say together.
	Seeds  []outcome                 `json:"seeds,omitempty"`
	Spread map[string]stats.Interval `json:"spread,omitempty"`
}

type versions struct {
	Fulgur   string `json:"fulgur"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// digest names what was used: files by name with their hashes, and one hash of all.
type digest struct {
	Name  string            `json:"name"`
	Hash  string            `json:"hash"`
	Files map[string]string `json:"files,omitempty"`
}

// outcome is what a run came to.
type outcome struct {
	Seed          int64               `json:"seed"`
	Run           string              `json:"run"` // the run's folder
	Weights       string              `json:"weights"`
	Best          string              `json:"best,omitempty"` // weights of the best policy by validation
	BestStep      int64               `json:"best_step,omitempty"`
	Steps         int64               `json:"steps"`
	Updates       int64               `json:"updates"`
	Rollouts      int64               `json:"rollouts"`
	Tokens        int64               `json:"trained_tokens"`
	Reached       bool                `json:"reached"`
	Before        *trainer.Evaluation `json:"before,omitempty"`
	Validation    *trainer.Evaluation `json:"validation,omitempty"` // the last
	After         *trainer.Evaluation `json:"after,omitempty"`
	WallSeconds   float64             `json:"wall_seconds"`
	CPUSeconds    float64             `json:"cpu_seconds"`
	AgentSeconds  float64             `json:"agent_cpu_seconds"`
	DeviceSeconds map[string]float64  `json:"device_seconds"` // of the engine's device, by what it was spent on
}

// writeDossier writes the dossier of a run that has ended.
func (j *trainJob) writeDossier(ctx context.Context, r trainer.Result, out result) error {
	d, err := j.newDossier(ctx, r, out)
	if err != nil {
		return err
	}
	return j.dir.writeJSON("dossier.json", d, 0o644)
}

func (j *trainJob) newDossier(ctx context.Context, r trainer.Result, out result) (dossier, error) {
	f := j.file
	d := dossier{
		Format: dossierFormat, Run: f.Run, Dir: f.Dir, Config: string(f.Effective()), Seed: f.Seed, BuildEnv: f.buildEnv,
		Threads: j.engine.threads, Kernels: kernelName(j.engine.kernels),
		Versions: versions{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH},
	}
	if d.Threads == 0 {
		d.Threads = runtime.NumCPU()
	}
	d.Bitwise = d.Threads == 1 && f.Schedule.Mode == string(schedule.Synchronous)
	var err error
	if d.Model, d.Data, err = inputDigests(f); err != nil {
		return d, err
	}
	d.Harness = harnessDigest(ctx, f, j.dir)
	d.Outcome = outcome{
		Seed: f.Seed, Run: string(j.dir), Steps: r.Steps, Updates: r.Updates, Rollouts: r.Rollouts, Tokens: r.Tokens, Reached: r.Reached,
		Before: r.Before, After: r.After, WallSeconds: out.WallSeconds, CPUSeconds: out.CPUSeconds, AgentSeconds: out.AgentSeconds,
		DeviceSeconds: map[string]float64{"rollout": r.Timing.Rollout.Seconds(), "update": r.Timing.Update.Seconds(),
			"evaluation": r.Timing.Evaluation.Seconds(), "checkpoint": r.Timing.Checkpoint.Seconds()},
	}
	if _, s, err := trainer.Last(string(j.dir)); err == nil {
		d.Outcome.Validation = s.Validated
	}
	if r.Final != "" {
		if d.Outcome.Weights, err = weightsHash(os.DirFS(r.Final)); err != nil {
			return d, err
		}
	}
	if r.Best != nil {
		d.Outcome.BestStep = r.Best.Step
		if d.Outcome.Best, err = weightsHash(os.DirFS(j.dir.path("checkpoints", r.Best.Dir))); err != nil {
			return d, err
		}
	}
	return d, nil
}

// inputDigests are the digests of what a run starts from: model and data.
func inputDigests(f *runFile) (model digest, data map[string]digest, err error) {
	files, err := modelFiles(f.Model, f.Dir)
	if err != nil {
		return model, nil, err
	}
	model.Name = f.Model
	if model.Hash, err = weightsHash(files); err != nil {
		return model, nil, err
	}
	data = map[string]digest{}
	for key, path := range map[string]string{"train": f.Data.Train, "validation": f.Data.Validation, "test": f.Data.Test} {
		if path == "" {
			continue
		}
		h, err := fileHash(f.resolve(path))
		if err != nil {
			return model, nil, fulgur.E(fulgur.KindNotFound, "hash data."+key, "the data file can't be read", err)
		}
		data[key] = digest{Name: path, Hash: h}
	}
	return model, data, nil
}

// weightsHash is one hash of a model's folder: its configuration, tokenizer and
// weights, by name. Optimizer state and counters are no part of it.
func weightsHash(files fs.FS) (string, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return "", fulgur.E(fulgur.KindNotFound, "hash weights", "the model's folder can't be read", err)
	}
	h := sha256.New()
	for _, e := range entries { // sorted by name
		name := e.Name()
		if e.IsDir() || !strings.HasPrefix(name, "model") || !strings.HasSuffix(name, ".safetensors") {
			if name != "config.json" && name != "tokenizer.json" {
				continue
			}
		}
		f, err := files.Open(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q\n", name)
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func fileHash(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// harnessDigest hashes the agent: its program and every file that its command names;
// where it is in an image, that and the command. What a program loads besides is not
// known here: the digest says that something changed, not that nothing did.
func harnessDigest(ctx context.Context, f *runFile, dir runDir) digest {
	d := digest{Name: strings.Join(f.Agent.Command, " "), Files: map[string]string{}}
	all := sha256.New()
	part := func(name, hash string) {
		d.Files[name] = hash
		fmt.Fprintln(all, hash)
	}
	switch {
	case f.Runner.Kind == "local":
		commandFiles(f, dir, part)
	case f.Runner.Kind == "kubernetes" && f.Runner.JobTemplate != "":
		d.Name = f.Runner.JobTemplate
		if h, err := fileHash(f.resolve(d.Name)); err == nil {
			part(d.Name, h)
		}
	default:
		d.Name = strings.TrimSpace(f.Runner.Image + " " + d.Name)
		part(f.Runner.Image, imageDigest(ctx, f))
		fmt.Fprintf(all, "%q\n", f.Agent.Command)
	}
	d.Hash = hex.EncodeToString(all.Sum(nil))
	return d
}

// commandFiles hashes the files that an agent's command names, by how they are named.
func commandFiles(f *runFile, dir runDir, part func(name, hash string)) {
	for i, arg := range inDir(config.Expand(f.Agent.Command, string(dir)), f.Dir) {
		path := arg
		if i == 0 && !strings.ContainsRune(arg, filepath.Separator) {
			if p, err := exec.LookPath(arg); err == nil {
				path = p
			}
		}
		if st, err := os.Stat(f.resolve(path)); err != nil || !st.Mode().IsRegular() {
			continue
		}
		if h, err := fileHash(f.resolve(path)); err == nil {
			part(f.Agent.Command[i], h)
		}
	}
}

// imageDigest is what the image of a run's agents is: the digest of its contents
// where its container program knows it here, else of its name, which may come to
// stand for another image.
func imageDigest(ctx context.Context, f *runFile) string {
	programs := []string{f.Runner.Container.Program}
	if f.Runner.Container.Program == "auto" {
		programs = []string{"podman", "docker"} // the first that is there, as the runner's
	}
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if f.Runner.Kind != "container" || err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		out, err := exec.CommandContext(ctx, path, "image", "inspect", "--format", "{{.Id}}", f.Runner.Image).Output()
		cancel()
		if id := strings.TrimPrefix(strings.TrimSpace(string(out)), "sha256:"); err == nil && id != "" {
			return id
		}
		break
	}
	sum := sha256.Sum256([]byte(f.Runner.Image))
	return hex.EncodeToString(sum[:])
}

// readDossier reads a dossier, or that of a run's folder.
func readDossier(path string) (dossier, error) {
	var d dossier
	if dir, err := openRunDir(path); err == nil {
		path = dir.path("dossier.json")
	}
	if err := runDir(filepath.Dir(path)).readJSON(filepath.Base(path), &d); err != nil {
		return d, fulgur.E(fulgur.KindNotFound, "read the dossier "+path, "want the dossier.json that a run writes when it ends, or the folder of such a run", err)
	}
	if d.Format != dossierFormat {
		return d, fulgur.E(fulgur.KindUnsupported, "read the dossier "+path, fmt.Sprintf("it has format %d, this version reads %d", d.Format, dossierFormat), nil)
	}
	return d, nil
}

// spread says what runs of several seeds say together.
func spread(runs []outcome) map[string]stats.Interval {
	values := map[string][]float64{}
	for _, o := range runs {
		for name, e := range map[string]*trainer.Evaluation{"before": o.Before, "validation": o.Validation, "after": o.After} {
			if e != nil {
				values[name+"/pass@1"] = append(values[name+"/pass@1"], e.Sampled.Rate)
				if g := rateOf(e.Greedy); g != nil {
					values[name+"/pass@1_greedy"] = append(values[name+"/pass@1_greedy"], *g)
				}
			}
		}
		values["wall_seconds"] = append(values["wall_seconds"], o.WallSeconds)
		values["steps"] = append(values["steps"], float64(o.Steps))
	}
	out := map[string]stats.Interval{}
	for name, v := range values {
		if len(v) == len(runs) {
			x := stats.Spread(v)
			if strings.Contains(name, "pass@1") { // a rate
				x.Low, x.High = max(0, x.Low), min(1, x.High)
			}
			out[name] = x
		}
	}
	return out
}

// names of a map, sorted.
func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
