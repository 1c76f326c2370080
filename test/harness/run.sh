#!/usr/bin/env bash
# Tries fulgur with other people's software. HARNESS=all adds the heavy harnesses
# (about 3 GB, once). Needs Python 3.12 or newer with venv, Node 20 with npm, and
# PyPI and the npm registry for what isn't installed yet; installations are kept in
# ~/.cache/fulgur/harness (HARNESS_CACHE names another folder).
#
# The harnesses run where there is only the loopback interface, so that none can
# reach anything but fulgur; where such a namespace isn't allowed, without it.
# Arguments go to the tests: test/harness/run.sh -test.run Harnesses/pi
set -euo pipefail
cd "$(dirname "$0")"

sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
need() { # TEST PACKAGE...
  if ! sh -c "$1" >/dev/null 2>&1; then
    echo "installing ${*:2}"
    $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends "${@:2}" >/dev/null
  fi
}
need "python3 -c 'import ensurepip, venv'" python3 python3-venv
need "npm --version" nodejs npm

scripts="agentlightning sdks pi codex claude-code"
[ "${HARNESS:-}" = all ] && scripts="$scripts qwen-code opencode openhands mini-swe-agent"
# Three at a time: they wait for the network more than for the processor.
echo "$scripts" | xargs -n 1 -P 3 sh -c 'began=$(date +%s); "run/$0.sh" --install || exit 255
took=$(($(date +%s) - began)); [ "$took" -le 1 ] || echo "$0: installed in $took s"' &
installed=$!

export FULGUR_HARNESS=${HARNESS:-1}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/fulgur" ../../cmd/fulgur
go test -c -o "$tmp/harness.test" .
export HARNESS_BINARY=$tmp/fulgur
wait "$installed"
run=("$tmp/harness.test" -test.v -test.timeout 20m "$@")

# Training installs the agent's own packages, so it needs the network.
failed=0
(( $# )) || "${run[@]}" -test.run 'TestPythonAgents' || failed=1

# up raises the loopback interface of the namespace.
up='import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14s", b"lo", 0x41, b""))'
alone=(unshare --net); [ "$(id -u)" = 0 ] || alone=(unshare --map-root-user --net)
alone+=(sh -c "python3 -c '$up' && exec \"\$@\"" sh)
if ! "${alone[@]}" true 2>/dev/null; then
  echo "a network namespace isn't allowed here: the harnesses run without one"
  alone=(env)
fi
"${alone[@]}" "${run[@]}" -test.skip 'TestPythonAgents' || failed=1
exit $failed
