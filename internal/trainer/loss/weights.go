// Package loss is the arithmetic between an advantage and a gradient: the weight
// of each token, and reference forms of the policy losses with their gradient
// with respect to the log probs. Everything here is a pure function over plain
// numbers; engines and tests are held to it.
package loss

// Weight returns what each trained token of a rollout weighs: A / (T R). T is
// the number of tokens sampled in the rollout's own conversation, trainable or
// not; R the number of unmasked rollouts of the optimizer step, those with
// advantage 0 included. Summed over T tokens, a rollout has |A| / R, however
// many samples it became, and what is masked is not made up by the rest.
func Weight(advantage float64, sampled, rollouts int) float64 {
	if advantage == 0 || sampled == 0 || rollouts == 0 {
		return 0
	}
	return advantage / (float64(sampled) * float64(rollouts))
}
