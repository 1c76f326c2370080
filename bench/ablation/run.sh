#!/bin/sh
# Rollout-level against sample-level advantage and loss where rollouts fragment:
# one model, one task, one harness (./agent), the seeds below, which were chosen
# before the first run. Prints what comes out, with 95 % intervals, and draws it.
#   bench/ablation/run.sh [STEPS] [VALIDATE_EVERY]     FULGUR=BINARY OUT=FOLDER SEEDS="101 102"
# 40 steps take about 25 minutes on two idle cores. Runs that OUT has are not repeated.
set -eu
cd "$(dirname "$0")/../.."
steps=${1:-40} every=${2:-10}
seeds=${SEEDS:-101 102 103 104 105}
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
