#!/bin/sh
# Rollout-level against sample-level advantage and loss where rollouts fragment:
# one model, one task, one harness (./agent). Prints what comes out, with 95 %
# intervals, and draws it.
#   bench/ablation/run.sh [STEPS] [VALIDATE_EVERY]     FULGUR=BINARY OUT=FOLDER SEEDS="201 202"
# 16 runs of 60 steps take about half an hour on two idle cores. Runs that OUT has are not repeated.
#
# Chosen before the first of these runs, and not changed after:
#   - seeds 201 to 208, 60 steps, the final score on 500 problems that nothing else looks at,
#     the difference paired by seed, Student's 95 % interval;
#   - how the harness fragments: ABLATION_VERIFY=.61 of the rollouts solve their task anew until
#     answers agree, ABLATION_AGAIN=.25 of those ask for one more that agrees (and so on), at most
#     ABLATION_ATTEMPTS=12 times. It was searched for on seeds 1, 2 and 3, rollout level, 40 steps,
#     by the share of rollouts that stay one sample (36 %) and samples a rollout (2.4) alone.
set -eu
cd "$(dirname "$0")/../.."
steps=${1:-60} every=${2:-30}
seeds=${SEEDS:-201 202 203 204 205 206 207 208}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
fulgur=${FULGUR:-$out/fulgur}
[ -x "$fulgur" ] || go build -o "$fulgur" ./cmd/fulgur
for seed in $seeds; do
	for level in rollout sample; do
		dir=$out/$level-$seed
		[ -e "$dir/ablation/result.json" ] && continue
		rm -rf "$dir"
		case $level in
		rollout) set -- --set algorithm.vote=rollout --set algorithm.aggregate=rollout ;;
		sample) set -- --set algorithm.vote=sample --set algorithm.aggregate=sequence ;;
		esac
		echo "seed $seed, $level level: $steps steps" >&2
		"$fulgur" train bench/ablation/run.yaml --out "$dir" --seed "$seed" "$@" --set steps="$steps" --set validation.every="$every" \
			--set algorithm.learning_rate.over="$steps" >"$out/$level-$seed.log" 2>&1
	done
done
exec go run ./bench/ablation "$out" $seeds
