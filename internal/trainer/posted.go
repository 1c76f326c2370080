package trainer

import (
	"context"

	"github.com/fulgur-rl/fulgur"
)

// Why a rollout has the reward of a failure.
const (
	whyFailed   = "the agent failed, and nothing grades what it left"
	whyNoReward = "the agent reported no reward"
	whyNoNumber = "the reward that the agent reported is no finite number"
)

// posted masks a rollout that went well, and whose agent has reported a reward
// that is no finite number (NaN, infinite, a text): that is not the same as none,
// and 0 would teach the policy that it had failed. One that failed counts as a
// failure all the same, or posting nonsense would be the way out. It returns what
// is to be put on record.
func (t *trainer) posted(ctx context.Context, e *ended, reward *fulgur.Reward) (*fulgur.Reward, error) {
	st, ok := t.o.Store.(events)
	if !ok || e.line.Why != whyNoReward || e.masked() {
		return reward, nil
	}
	all, err := again(ctx, func() ([]fulgur.Event, error) { return st.Events(ctx, e.line.ID, e.attempt) })
	if err != nil {
		return reward, err
	}
	for _, ev := range all {
		if ev.Type == fulgur.EventReward && ev.Unused == fulgur.UnusedNoNumber {
			e.line.Reward, e.line.Masked, e.line.Why = nil, maskNotFinite, whyNoNumber
			return nil, nil
		}
	}
	return reward, nil
}
