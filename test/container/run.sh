#!/usr/bin/env bash
# Runs the container runner's tests against Podman, and against a Docker service of
# its own: installs Debian's where there is none. run.sh podman|docker [FLAGS of go
# test]: that one alone. FULGUR_TEST_CONTAINER names a program that is set up already.
set -euo pipefail
cd "$(dirname "$0")/../.."

sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
dir=$(mktemp -d)
daemon=
tidy() {
  [ -z "$daemon" ] || { $sudo kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
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

# Low: without CAP_SYS_RESOURCE no limit can be raised above the one that is there.
files=1024 procs=4096

tests() { # tests PROGRAM: static, for the test binary is the agent in an image with nothing else
  "$1" --version
  CGO_ENABLED=0 FULGUR_TEST_CONTAINER=$1 go test -count=1 -timeout 10m "${flags[@]}" ./internal/controller/container
}

podman_() {
  install podman podman
  install catatonit catatonit
  runtime=crun # it refuses machines where both kinds of cgroups are mounted
  [ ! -e /sys/fs/cgroup/unified/cgroup.controllers ] || runtime=runc
  install "$runtime" "$runtime"
  # For the tests alone: no systemd is needed.
  cat >"$dir/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$procs:$procs"]
[engine]
runtime = "$runtime"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
  CONTAINERS_CONF="$dir/containers.conf" tests podman
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
}

which=${1:-all}
flags=("${@:2}")
if [ -n "${FULGUR_TEST_CONTAINER:-}" ]; then tests "$FULGUR_TEST_CONTAINER"; exit; fi
case $which in
podman | docker) "${which}_" ;;
all)
  podman_
  docker_
  ;;
*)
  echo "usage: run.sh [podman|docker] [FLAGS of go test]"
  exit 2
  ;;
esac
