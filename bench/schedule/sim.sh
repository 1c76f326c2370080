#!/bin/sh
# fulgur sim against real runs: calc with tools that wait is trained both ways, and
# each run is simulated from its own record. Steps a second may differ by 15 %.
# With OUT of run.sh its runs are used. 3 to 5 minutes.
#   bench/schedule/sim.sh [STEPS]       FULGUR=BINARY OUT=FOLDER
set -eu
cd "$(dirname "$0")/../.."
steps=${1:-40}
out=${OUT:-$(mktemp -d)}
fulgur=${FULGUR:-$out/fulgur}
[ -x "$fulgur" ] || go build -o "$fulgur" ./cmd/fulgur
bad=0
for mode in synchronous collocated; do
	dir=$out/$mode-1
	if [ ! -e "$dir/calc-wait/result.json" ]; then
		rm -rf "$dir"
		echo "$mode: $steps steps" >&2
		"$fulgur" train examples/calc/wait.yaml --out "$dir" --seed 1 --set schedule.mode="$mode" --set data.test= \
			--set steps="$steps" --set validation.every=0 --set algorithm.learning_rate.over="$steps" >"$out/$mode-1.log" 2>&1
	fi
	"$fulgur" sim "$dir/calc-wait" >"$out/$mode.sim"
	cat "$out/$mode.sim"
	echo
	off=$(sed -n 's/^The run itself .* its simulation [^,]*, \([-+][0-9]*\) %\.$/\1/p' "$out/$mode.sim")
	[ -n "$off" ] && [ "${off#[-+]}" -le 15 ] || { echo "$mode: the simulation is off by ${off:-?} %, at most 15 is wanted" >&2; bad=1; }
done
exit $bad
