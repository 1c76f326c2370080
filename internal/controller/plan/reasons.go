package plan

import (
	"slices"

	"github.com/fulgur-rl/fulgur"
)

// Reason is a word for how an attempt ended, and what it means.
type Reason struct {
	Name  string
	Class fulgur.OutcomeClass
	Cause Cause  // whose fault it is, where the runner does not say otherwise (Exit.Cause)
	Means string // for people
}

// Reasons that Judge gives, beside those of stops, and words for Exit.Failure.
const (
	ReasonOK       = "ok"
	ReasonNoCalls  = "no_calls" // went well, but asked the model nothing
	ReasonExit     = "exit"     // a non-zero exit code
	ReasonSignal   = "signal"   // a signal that the controller did not send
	ReasonError    = "error"
	ReasonProtocol = "protocol"
	ReasonOverflow = "context_overflow"
	ReasonUpstream = "upstream" // ended, well or not, after the model server had failed its last call
	ReasonLost     = "lost"     // its controller died
	ReasonUnknown  = "unknown"

	ReasonMemory    = "memory"
	ReasonProcesses = "processes"
	ReasonDisk      = "disk"
	ReasonCPU       = "cpu"

	ReasonInput         = "input"
	ReasonSpawn         = "spawn"
	ReasonWorker        = "worker"
	ReasonSandbox       = "sandbox"
	ReasonImage         = "image"
	ReasonRuntime       = "runtime"
	ReasonQuota         = "quota"
	ReasonAdmission     = "admission"
	ReasonUnschedulable = "unschedulable"
	ReasonEvicted       = "evicted"
	ReasonPreempted     = "preempted"
	ReasonNode          = "node"
	ReasonDeleted       = "deleted"
	ReasonDeadline      = "deadline"
	ReasonGrader        = "grader"
	ReasonWorkspace     = "workspace"
)

// Reasons returns all words with their meaning, in the order in which docs show
// them. A runner may use others; they count by their Exit.Cause.
func Reasons() []Reason {
	const ok, agent, infra = fulgur.OutcomeOK, fulgur.OutcomeAgent, fulgur.OutcomeInfrastructure
	return []Reason{
		{ReasonOK, ok, CauseAgent, "the agent exited with code 0"},
		{ReasonNoCalls, ok, CauseAgent, "the agent exited with code 0 and had asked the model nothing"},

		{ReasonExit, agent, CauseAgent, "the agent exited with another code than 0"},
		{ReasonSignal, agent, CauseAgent, "a signal ended the agent that Fulgur had not sent"},
		{ReasonError, agent, CauseAgent, "a worker said that the rollout failed"},
		{ReasonProtocol, agent, CauseAgent, "a worker broke the protocol of workers"},
		{ReasonTimeout, agent, CauseAgent, "agent.timeout of active time was over"},
		{ReasonIdle, agent, CauseAgent, "no call and no event for agent.idle_timeout of active time"},
		{ReasonOverflow, agent, CauseAgent, "it ended after its last call had not fitted the model's context"},
		{ReasonMemory, agent, CauseAgent, "its own container or sandbox ran out of memory"},
		{ReasonProcesses, agent, CauseAgent, "its own container or sandbox ran out of processes"},
		{ReasonDisk, agent, CauseAgent, "its own container, sandbox or workspace ran out of disk, or it wrote too large a file"},
		{ReasonCPU, agent, CauseAgent, "it used up its CPU time"},

		{ReasonInput, infra, CausePermanent, "the rollout's input cannot be given to the agent: a path that is not there, a value over the system's limits"},
		{ReasonSpawn, infra, CausePermanent, "the agent's program could not be started"},
		{ReasonWorker, infra, CauseTransient, "a worker ended or hung before it took its first rollout"},
		{ReasonSandbox, infra, CauseTransient, "the sandbox, or its relay to the gateway, could not be set up"},
		{ReasonImage, infra, CausePermanent, "the image could not be had"},
		{ReasonRuntime, infra, CauseTransient, "the container runtime could not start the container"},
		{ReasonQuota, infra, CauseTransient, "the quota left no room"},
		{ReasonAdmission, infra, CausePermanent, "the cluster refused the Job"},
		{ReasonUnschedulable, infra, CauseTransient, "no node had room for it"},
		{ReasonStartTimeout, infra, CauseTransient, "it was not running after agent.start_timeout"},
		{ReasonEvicted, infra, CauseEither, "its node was short of something and ended it"},
		{ReasonPreempted, infra, CauseTransient, "something of higher priority took its place"},
		{ReasonNode, infra, CauseTransient, "its node was lost or drained"},
		{ReasonDeleted, infra, CauseTransient, "somebody else deleted what it ran in"},
		{ReasonDeadline, infra, CauseEither, "the far deadline of its Job was over"},
		{ReasonUpstream, infra, CauseTransient, "it ended after the model server, or the gateway, had failed its last call"},
		{ReasonWorkspace, infra, CauseEither, "what it left to be graded did not come out of its pod"},
		{ReasonGrader, infra, CausePermanent, "the program that grades it failed"},
		{ReasonLost, infra, CauseTransient, "its controller died"},
		{ReasonShutdown, infra, CauseTransient, "its controller was stopped"},
		{ReasonOrphaned, infra, CausePermanent, "its run's trainer had been gone for a minute"},
		{ReasonUnknown, infra, CausePermanent, "it has ended, and nobody knows how"},
		{ReasonEnded, infra, CausePermanent, "its rollout was ended or deleted"},
	}
}

// Find returns what a word means; ok is false for one that is not in the table.
func Find(name string) (r Reason, ok bool) {
	all := Reasons()
	i := slices.IndexFunc(all, func(r Reason) bool { return r.Name == name })
	if i < 0 {
		return Reason{}, false
	}
	return all[i], true
}

// Failed is the exit of an execution that failed for a reason of the table,
// with the cause that stands there.
func Failed(reason, message string) Exit {
	x := Exit{Code: -1, Failure: reason, Cause: CauseEither, Message: message}
	if r, ok := Find(reason); ok {
		x.Cause = r.Cause
	}
	return x
}
