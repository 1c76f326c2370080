package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/fulgur-rl/fulgur"
)

// Exit says how an execution ended, as its runner saw it.
type Exit struct {
	Code   int    // exit code; -1 if a signal or a failure ended it
	Signal string // name of the signal that ended it
	// Failure is the word (Reasons) for what went wrong beside or before the exit;
	// "": it ran and exited.
	Failure string
	Cause   Cause         // whose fault Failure is
	Guess   bool          // Failure is what the agent printed, and nothing else says so
	Filled  string        // it has filled the disk that the record is on: how that is known; "": it has not, as far as is known
	Message string        // what happened, for people; for "": Judge says it
	Note    string        // what else is to be said of it, for people
	Tail    string        // last lines of the log
	Log     string        // path of the log, if it was kept
	CPU     time.Duration // of the execution and the children it waited for
	Graded  *fulgur.Graded
}

// Cause says whose fault a failure is.
type Cause int

// The causes.
const (
	CauseAgent     Cause = iota // the agent's own, in its own container or sandbox: it ends the rollout
	CauseTransient              // outside its container; another attempt may go better
	CausePermanent              // outside its container; another attempt would fail the same way
	// CauseEither: it came from outside its container, but what the agent did can
	// bring it about. It is transient for an attempt that has not asked the model
	// yet, and the agent's own for one that has: it must never be better for the
	// policy than failing.
	CauseEither
)

// Facts are what Judge looks at.
type Facts struct {
	Exit     Exit
	Stopped  string // the reason for which the controller stopped it; "": it did not
	Calls    int    // on record; -1: not known
	Open     int    // calls that were under way when it ended
	Upstream string // error of the attempt's last call, if the model server or the gateway failed it
	Overflow string // what the attempt's last call was told, if it did not fit the model's context
	// Restarted: the gateway was started again while the agent ran, and what calls
	// that cut off is on no record.
	Restarted bool
	Limit     time.Duration // what the clock was that Stopped names
	Before    History
	Limits    Limits
}

// History counts the rollout's earlier attempts.
type History struct {
	Failures int // infrastructure failures
	Lost     int // ended by the death or the stop of a controller
}

// Verdict says how an attempt ends and what follows.
type Verdict struct {
	Outcome fulgur.Outcome
	Retry   bool
	Delay   time.Duration // before the next attempt
}

// Judge says how the attempt ends. The reason of a stop wins over the exit code
// that the kill left (a run killed for its timeout does not "exit with -9"). A
// failure of the model server wins over the agent's exit: many agents swallow
// it and exit with 0, and their answer is then no answer of the policy's.
func Judge(f Facts) Verdict {
	out := fulgur.Outcome{Calls: max(f.Calls, 0), Graded: f.Exit.Graded}
	if f.Exit.Failure == "" && f.Exit.Signal == "" && f.Exit.Code >= 0 {
		code := f.Exit.Code
		out.ExitCode = &code
	}
	end := func(class fulgur.OutcomeClass, reason, message string) Verdict {
		out.Class, out.Reason, out.Message = class, reason, message
		if f.Exit.Note != "" {
			out.Message = strings.TrimPrefix(message+"; "+f.Exit.Note, "; ")
		}
		if f.Exit.Tail != "" && class != fulgur.OutcomeOK {
			where := ""
			if f.Exit.Log != "" {
				where = " (" + f.Exit.Log + ")"
			}
			out.Message += "\nlast lines of its log" + where + ":\n" + f.Exit.Tail
		}
		return Verdict{Outcome: out}
	}
	switch f.Stopped {
	case ReasonTimeout:
		return end(fulgur.OutcomeAgent, f.Stopped, fmt.Sprintf("the agent had not ended after %s of active time (agent.timeout); its processes were killed", f.Limit))
	case ReasonIdle:
		return end(fulgur.OutcomeAgent, f.Stopped, fmt.Sprintf("the agent made no model call and posted no event for %s (agent.idle_timeout); its processes were killed", f.Limit))
	case ReasonStartTimeout:
		msg := fmt.Sprintf("the agent was not running after %s (agent.start_timeout)", f.Limit)
		if f.Exit.Message != "" {
			msg += ": " + f.Exit.Message
		}
		return retry(end(fulgur.OutcomeInfrastructure, f.Stopped, msg), f)
	case ReasonShutdown:
		v := end(fulgur.OutcomeInfrastructure, f.Stopped, "the controller was stopped; its next start goes on with a new attempt")
		v.Retry = true
		return v
	case ReasonOrphaned:
		return end(fulgur.OutcomeInfrastructure, f.Stopped, "the run's trainer is gone: its agents were ended; `fulgur resume` goes on with the run")
	case ReasonEnded:
		return end(fulgur.OutcomeInfrastructure, f.Stopped, "the rollout was ended or deleted while its agent ran; its processes were killed")
	}
	if f.Exit.Cause == CauseEither {
		f.Exit.Cause = CauseAgent
		if f.Calls == 0 && f.Open == 0 {
			f.Exit.Cause = CauseTransient
		}
	}
	switch {
	case f.Exit.Failure != "" && f.Exit.Cause == CauseTransient:
		return retry(end(fulgur.OutcomeInfrastructure, f.Exit.Failure, f.Exit.Message), f)
	case f.Exit.Failure != "" && f.Exit.Cause == CausePermanent:
		return end(fulgur.OutcomeInfrastructure, f.Exit.Failure, f.Exit.Message)
	case exhausted(f.Exit.Failure) && !f.Exit.Guess: // whatever else had happened before
		return end(fulgur.OutcomeAgent, f.Exit.Failure, f.Exit.Message)
	case f.Exit.Filled != "" && (f.Upstream != "" || f.Restarted): // what failed its call is its own doing
		return end(fulgur.OutcomeAgent, ReasonDisk, f.Exit.Filled)
	case f.Upstream != "":
		return retry(end(fulgur.OutcomeInfrastructure, ReasonUpstream, "the agent ended after the model server had failed its last call: "+f.Upstream), f)
	case f.Restarted && (f.Exit.Code != 0 || f.Exit.Signal != "" || f.Exit.Failure != ""):
		return retry(end(fulgur.OutcomeInfrastructure, ReasonUpstream, "the agent failed, and the gateway had been started again while it ran"), f)
	case f.Overflow != "": // also one that swallowed it: it had not come to its end
		return end(fulgur.OutcomeAgent, ReasonOverflow, "the agent's last call did not fit the model's context: "+f.Overflow)
	case f.Exit.Failure == "" && f.Exit.Signal == "" && f.Exit.Code == 0:
		if f.Calls == 0 {
			return end(fulgur.OutcomeOK, ReasonNoCalls, "the agent exited with code 0 without a model call: does it take its address from OPENAI_BASE_URL and its key from OPENAI_API_KEY?")
		}
		return end(fulgur.OutcomeOK, ReasonOK, f.Exit.Message)
	case f.Exit.Failure != "":
		return end(fulgur.OutcomeAgent, f.Exit.Failure, f.Exit.Message)
	case f.Exit.Signal != "":
		return end(fulgur.OutcomeAgent, ReasonSignal, "the agent was ended by signal "+f.Exit.Signal)
	}
	return end(fulgur.OutcomeAgent, ReasonExit, fmt.Sprintf("the agent exited with code %d", f.Exit.Code))
}

// Graded says whether what an execution has left is graded by its program: it ended by its
// own doing, and either well or in a way that counts for what is left. What a run makes
// of outcomes in training is no reason to leave them out of what it is measured by:
// there (train is false) single reasons have no say.
func Graded(f Facts, train bool) bool {
	v := Judge(f)
	switch {
	case v.Retry || v.Outcome.Class == fulgur.OutcomeInfrastructure:
		return false
	case v.Outcome.Class == fulgur.OutcomeOK:
		return true
	case !train:
		return byGrade(f.Limits.Table.Agent)
	}
	return byGrade(f.Limits.Table.Follow(v.Outcome.Class, v.Outcome.Reason))
}

// exhausted says whether a failure is that the agent used up what it was given:
// that is no way to another attempt, even where its last call had failed.
func exhausted(reason string) bool {
	switch reason {
	case ReasonMemory, ReasonProcesses, ReasonDisk, ReasonCPU:
		return true
	}
	return false
}

// retry grants another attempt while the budget lasts.
func retry(v Verdict, f Facts) Verdict {
	most := f.Limits.Table.RetriesOf(v.Outcome.Reason)
	if f.Before.Failures >= most {
		v.Outcome.Message += fmt.Sprintf(" (attempt %d of %d: no retry is left)", f.Before.Failures+1, most+1)
		return v
	}
	v.Retry = true
	v.Delay = min(f.Limits.Backoff<<min(f.Before.Failures, 20), MaxBackoff)
	return v
}
