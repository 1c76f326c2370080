package fulgur

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Distinct kinds of string are distinct types.
type (
	RunID     string // a run; v1's calls act on DefaultRun
	RolloutID string // one run of an agent on one input
	AttemptID string // "0", "1", …: one execution of a rollout
	GroupID   string // the rollouts of one dataset row in one step
	CallID    string // one model call, unique in the store
)

// DefaultRun is the run that the v1 routes act on.
const DefaultRun RunID = "default"

// PolicyVersion counts the published updates of a run: 0 is the start weights,
// and it goes on counting after resume.
type PolicyVersion int64

// Seq is a position in the store's append-only log of changes.
type Seq int64

// MaxRolloutID is the longest id that NewRolloutID makes.
const MaxRolloutID = 40

// RolloutKey says which rollout of a run is meant; its id is a function of it,
// so that creating it again after a crash makes no second one.
type RolloutKey struct {
	Run    RunID
	Part   string // "train", "val", "test", "before", …: keeps evaluations apart from training
	Epoch  int    // pass over the dataset
	Row    int    // row of the dataset
	K      int    // member of the group, from 0
	Refill int    // 0, or the number of times this row was asked for again in this epoch
}

// NewRolloutID returns the id of a rollout: [a-z0-9-], at most MaxRolloutID
// characters, readable in front and unique by a hash of the whole key behind.
func NewRolloutID(k RolloutKey) RolloutID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %d %d", k.Run, k.Part, k.Epoch, k.Row, k.K, k.Refill))
	part := ""
	for _, c := range k.Part {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			part += string(c)
		}
		if len(part) == 6 {
			break
		}
	}
	if part == "" {
		part = "r"
	}
	head := fmt.Sprintf("%s-%d-%d-%d", part, k.Epoch, k.Row, k.K)
	if len(head) > 27 {
		head = head[:27]
	}
	return RolloutID(head + "-" + hex.EncodeToString(sum[:6]))
}

// GroupOf returns the id that the members of k's group share.
func GroupOf(k RolloutKey) GroupID {
	return GroupID(fmt.Sprintf("%s-%d-%d-%d", k.Part, k.Epoch, k.Row, k.Refill))
}
