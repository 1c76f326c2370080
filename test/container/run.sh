#!/usr/bin/env bash
# Runs the container runner's tests against Podman (FULGUR_TEST_CONTAINER: another
# program, such as docker). Installs Debian's Podman where there is none.
set -euo pipefail
cd "$(dirname "$0")/../.."

program=${FULGUR_TEST_CONTAINER:-podman}
if ! command -v "$program" >/dev/null; then
  [ "$program" = podman ] || { echo "$program is not on PATH"; exit 1; }
  echo "installing podman"
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc catatonit >/dev/null
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
if [ "$program" = podman ] && [ -z "${CONTAINERS_CONF:-}" ]; then
  # For the tests alone: no systemd is needed, limits stay within what this user has
  # (without CAP_SYS_RESOURCE none can be raised), and where both kinds of cgroups
  # are mounted runc is used, for crun refuses that.
  runtime=crun
  if ! command -v crun >/dev/null || [ -e /sys/fs/cgroup/unified/cgroup.controllers ]; then runtime=runc; fi
  if ! command -v "$runtime" >/dev/null; then
    sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$runtime" >/dev/null
  fi
  files=$(ulimit -Hn) procs=$(ulimit -Hu)
  [ "$files" = unlimited ] && files=1048576
  [ "$procs" = unlimited ] && procs=1048576
  cat >"$dir/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$procs:$procs"]
[engine]
runtime = "$runtime"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
  export CONTAINERS_CONF="$dir/containers.conf"
fi
"$program" --version
# Static: the test binary is the agent in an image with nothing else.
CGO_ENABLED=0 FULGUR_TEST_CONTAINER=$program go test -count=1 -timeout 10m "$@" ./internal/controller/container
