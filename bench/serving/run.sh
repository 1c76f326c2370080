#!/bin/sh
# Runs the demo's training as three processes (fulgur serve, controller, train) and
# prints the CPU seconds of each, of the agents, and the share of serve and controller:
# at most a quarter. Linux (reads /proc). Build and start are not counted.
#
#   bench/serving/run.sh [STEPS] [BINARY]
#
# STEPS of 64 rollouts or more each (12 by default), or "demo": the whole of it, with
# its evaluations. BINARY is measured in place of this
# checkout's, to compare two. PROFILES=DIR keeps a CPU profile of each process there.
set -eu
cd "$(dirname "$0")/../.."
steps=${1:-12}
case $steps in
demo) sets='' ;;
*) sets="--set steps=$steps --set validation.every=0 --set stop.validation=0 --set data.test=" ;;
esac
tmp=$(mktemp -d)
serve='' controller='' train=''
trap 'for p in $train $controller $serve; do kill -INT "$p" 2>/dev/null || true; done; wait; rm -rf "$tmp"' EXIT
bin=${2:-}
if [ -z "$bin" ]; then
	bin=$tmp/fulgur
	go build -o "$bin" ./cmd/fulgur
fi
bin=$(cd "$(dirname "$bin")" && pwd)/$(basename "$bin")
for d in controller train; do # no file is shared
	mkdir "$tmp/$d"
	cp -r examples/calc "$tmp/$d/calc"
done
printf 'module github.com/fulgur-rl/fulgur/examples/calc\n\ngo 1.26\n' >"$tmp/controller/calc/go.mod"
profile() { [ -z "${PROFILES:-}" ] || echo "FULGUR_CPUPROFILE=$PROFILES/$1.prof"; }

# cpu PID prints the CPU seconds of a process, and of the children it has waited for.
cpu() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hz, ($16 + $17) / hz }' "/proc/$1/stat"; }
die() { echo "$1" >&2; cat "$tmp"/*.log >&2; exit 1; }

: >"$tmp/url"
# shellcheck disable=SC2046 # an assignment, or nothing
env $(profile serve) "$bin" serve --listen 127.0.0.1:0 --key K --model-dir builtin:calc --store "sqlite:$tmp/store.db" >"$tmp/url" 2>"$tmp/serve.log" &
serve=$!
for _ in $(seq 100); do grep -q http "$tmp/url" && break; sleep 0.1; done
url=$(sed -n 's/^listening on //p' "$tmp/url")
[ -n "$url" ] || die "serve did not start"
(cd "$tmp/controller" && exec env $(profile controller) "$bin" controller calc/run.yaml --server "$url" --key K -o runs) >"$tmp/controller.log" 2>&1 &
controller=$!
for _ in $(seq 600); do [ -x "$tmp/controller/runs/calc-agents/agent" ] && break; kill -0 "$controller" 2>/dev/null || break; sleep 0.1; done
[ -x "$tmp/controller/runs/calc-agents/agent" ] || die "the agent was not built"
sleep 1
serve0=$(cpu "$serve") controller0=$(cpu "$controller")
# shellcheck disable=SC2086 # several words, or none
(cd "$tmp/train" && exec env $(profile train) "$bin" train calc/run.yaml --server "$url" --key K -o runs $sets) >"$tmp/train.log" 2>&1 &
train=$!
last='0 0'
while now=$(cpu "$train" 2>/dev/null) && [ -n "$now" ] && kill -0 "$train" 2>/dev/null; do last=$now; sleep 0.05; done
wait "$train" || die "train failed"
train=''
serve1=$(cpu "$serve") controller1=$(cpu "$controller")
rollouts=$(sed -n 's/^cost.* \([0-9]*\) rollouts.*/\1/p' "$tmp/train.log")
echo "$serve0 $controller0 $serve1 $controller1 $last ${rollouts:-0}" | awk '{
	s = $5 - $1; c = $7 - $3; a = $8 - $4; t = $9; n = $11
	printf "serving/serve       %6.2f CPU s  %5.2f ms a rollout\n", s, n ? 1000 * s / n : 0
	printf "serving/controller  %6.2f CPU s  %5.2f ms a rollout\n", c, n ? 1000 * c / n : 0
	printf "serving/agents      %6.2f CPU s  %5.2f ms a rollout (at most 10)\n", a, n ? 1000 * a / n : 0
	printf "serving/trainer     %6.2f CPU s  %5.2f ms a rollout\n", t, n ? 1000 * t / n : 0
	printf "serving/share       %6.1f %%      of %d rollouts, serve and controller together (at most 25)\n", 100 * (s + c) / (s + c + a + t), n
}'
