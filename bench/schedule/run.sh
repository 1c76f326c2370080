#!/bin/sh
# calc with tools that wait, trained synchronously and collocated with steps that
# overlap: optimizer steps per second after the first steps, and the score on the
# 500 test problems at the end, for each seed and together. 15 to 25 minutes.
#   bench/schedule/run.sh [SEEDS] [STEPS]       FULGUR=BINARY OUT=FOLDER
set -eu
cd "$(dirname "$0")/../.."
seeds=${1:-3} steps=${2:-60}
out=${OUT:-$(mktemp -d)}
fulgur=${FULGUR:-$out/fulgur}
[ -x "$fulgur" ] || go build -o "$fulgur" ./cmd/fulgur
for seed in $(seq 1 "$seeds"); do
	for mode in synchronous collocated; do
		dir=$out/$mode-$seed
		[ -e "$dir/calc-wait/result.json" ] && continue # of a run of this script that was stopped
		rm -rf "$dir"
		echo "seed $seed, $mode: $steps steps" >&2
		"$fulgur" train examples/calc/wait.yaml --out "$dir" --seed "$seed" --set schedule.mode="$mode" \
			--set steps="$steps" --set validation.every=0 --set algorithm.learning_rate.over="$steps" >"$out/$mode-$seed.log" 2>&1
	done
done
exec go run ./bench/schedule "$out"
