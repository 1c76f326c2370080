#!/usr/bin/env bash
# Runs the container runner's tests against Podman, against Podman without root's rights
# (a part of them, as a user of its own), and against a Docker service of its own:
# installs Debian's where there is none. run.sh podman|rootless|docker [FLAGS of go test]:
# that one alone. FULGUR_TEST_CONTAINER names a program that is set up already.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$0")/../.."

sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
dir=$(mktemp -d)
daemon= user=
tidy() {
  if [ -n "$user" ]; then
    [ ! -e "$home/run/libpod/tmp/pause.pid" ] || $sudo kill "$(<"$home/run/libpod/tmp/pause.pid")" 2>/dev/null || true
    $sudo userdel "$user"
    $sudo rm -rf "$home"
  fi
  [ -z "$daemon" ] || { $sudo kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
  $sudo umount "$dir"/docker/exec/netns/* 2>/dev/null || true
  $sudo rm -rf "$dir"
}
trap tidy EXIT

install() { # install PROGRAM PACKAGE...
  command -v "$1" >/dev/null && return
  shift
  echo "installing $*"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# What graders run; the tests take the system's python3 into their image.
/usr/bin/python3 -m pytest --version >/dev/null 2>&1 || install pytest-of-the-system python3-pytest

# Low: without CAP_SYS_RESOURCE no limit can be raised above the one that is there.
files=1024 procs=4096

tests() { # tests PROGRAM: static, for the test binary is the agent in an image with nothing else
  "$1" --version
  CGO_ENABLED=0 FULGUR_TEST_CONTAINER=$1 go test -count=1 -timeout 10m "${flags[@]}" ./internal/controller/container
}

# A run of the example: its agent's image made here, its agents with no network but the
# gateway; every rollout ends well and nothing is left.
calc() { # calc PROGRAM
  local arch; arch=$(go env GOARCH)
  go run ./tools/image -only fulgur-calc-agent -platforms "linux/$arch" -out "$dir/image" >/dev/null
  "$1" load --quiet --input "$dir/image/fulgur-calc-agent-linux-$arch.tar" >/dev/null
  CGO_ENABLED=0 go build -o "$dir/fulgur" ./cmd/fulgur
  cat >"$dir/run.yaml" <<RUN
version: 1
run: $(basename "$1")
model: builtin:calc
data: {train: $PWD/examples/calc/data/train.jsonl, validation: $PWD/examples/calc/data/val.jsonl}
steps: 1
sampling: {max_tokens: 48}
agent: {input: {env: {QUESTION: input.question}}}
runner: {kind: container, image: "localhost/fulgur-calc-agent:devel", slots: 4, container: {program: "$1", pull: never, read_only: true, cpus: 1}}
reward: {builtin: final-answer, expected: input.answer, compare: number}
algorithm: {group_size: 4, groups_per_step: 2}
validation: {every: 1, problems: 2}
out: $dir/runs
RUN
  "$dir/fulgur" train "$dir/run.yaml" --check >/dev/null 2>&1
  if ! "$dir/fulgur" doctor "$dir/run.yaml" >"$dir/doctor" 2>&1 || ! grep '^containers.*network gateway  *ok' "$dir/doctor"; then cat "$dir/doctor"; exit 1; fi
  "$dir/fulgur" train "$dir/run.yaml" >"$dir/train.log" 2>&1 || { cat "$dir/train.log"; exit 1; }
  "$dir/fulgur" rollouts list --run "$dir/runs/$(basename "$1")" --json >"$dir/rollouts"
  local ok; ok=$(grep -c '"succeeded"' "$dir/rollouts" || true)
  local left; left=$("$1" ps --all --quiet --filter ancestor=localhost/fulgur-calc-agent:devel | wc -l)
  echo "calc in containers of $1: $ok of $(wc -l <"$dir/rollouts") rollouts succeeded, $left containers left"
  [ "$ok" -ge 12 ] && [ "$ok" = "$(wc -l <"$dir/rollouts")" ] && [ "$left" = 0 ]
}

prepare() { # Podman, and its settings for the tests alone
  install podman podman
  install catatonit catatonit
  runtime=crun # it refuses machines where both kinds of cgroups are mounted
  [ ! -e /sys/fs/cgroup/unified/cgroup.controllers ] || runtime=runc
  install "$runtime" "$runtime"
  # No systemd is needed.
  cat >"$dir/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$procs:$procs"]
[engine]
runtime = "$runtime"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
}

podman_() {
  prepare
  export CONTAINERS_CONF="$dir/containers.conf"
  tests podman
  calc podman
}

rootless_() {
  prepare
  install newuidmap uidmap
  [ "${#flags[@]}" -gt 0 ] || flags=(-short -run 'TestRunner|TestWhatFailsLater|TestGrader|TestAgentReaches|TestProof|TestRelayComesBack')
  home=$(mktemp -d)
  CGO_ENABLED=0 go test -c -o "$home/container.test" ./internal/controller/container
  cp "$dir/containers.conf" "$home/"
  mkdir -m 700 "$home/run"
  user=fulgur-test-rootless # with ranges of subordinate ids, as useradd gives them
  $sudo useradd --home-dir "$home" --shell /bin/sh "$user"
  $sudo chown -R "$user" "$home"
  (cd / && $sudo setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH="$PATH" HOME="$home" TMPDIR="$home" XDG_RUNTIME_DIR="$home/run" \
    CONTAINERS_CONF="$home/containers.conf" FULGUR_TEST_CONTAINER=podman "$home/container.test" -test.timeout 10m "${flags[@]/#-/-test.}")
}

docker_() {
  install dockerd docker.io
  docker=/usr/bin/docker
  [ -x "$docker" ] || docker=$(command -v docker)
  mkdir "$dir/docker"
  # By itself: its own store, no bridge and no firewall rules.
  $sudo dockerd --data-root "$dir/docker/data" --exec-root "$dir/docker/exec" --pidfile "$dir/docker/pid" -H "unix://$dir/docker/socket" \
    --bridge=none --iptables=false --ip6tables=false --default-ulimit "nofile=$files:$files" >"$dir/docker/log" 2>&1 &
  daemon=$!
  export DOCKER_HOST="unix://$dir/docker/socket"
  for _ in $(seq 100); do $docker info >/dev/null 2>&1 && break; sleep 0.2; done
  $docker info >/dev/null || { tail -20 "$dir/docker/log"; exit 1; }
  tests "$docker"
  calc "$docker"
}

which=${1:-all}
flags=("${@:2}")
if [ -n "${FULGUR_TEST_CONTAINER:-}" ]; then tests "$FULGUR_TEST_CONTAINER"; exit; fi
case $which in
podman | rootless | docker) "${which}_" ;;
all)
  podman_
  "$self" rootless
  docker_
  ;;
*)
  echo "usage: run.sh [podman|rootless|docker] [FLAGS of go test]"
  exit 2
  ;;
esac
