#!/usr/bin/env bash
# Runs what needs the sandbox: installs Debian's bubblewrap (and pytest, for graders)
# where there is none, then the packages' tests as this user and, where this is root, as an ordinary
# user too, and fulgur doctor. A test that skips for want of a sandbox fails here.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v bwrap >/dev/null; then
  echo "installing bubblewrap"
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null
fi
bwrap --version
if ! python3 -m pytest --version >/dev/null 2>&1; then
  echo "installing python3-pytest" # what graders run
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pytest >/dev/null
  export PATH=/usr/bin:$PATH # Debian's python3 has it
fi

export FULGUR_TEST_SANDBOX=1
go test -count=1 -timeout 300s ./internal/controller/sandbox
go test -count=1 -timeout 300s -run 'Sandbox|Limits|Kill|Grader' ./internal/controller/local
go test -count=1 -timeout 300s -run 'Doctor' ./internal/cli

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/fulgur" ./cmd/fulgur
"$dir/fulgur" doctor
if [ "$(id -u)" = 0 ]; then
  # Namespaces that a user makes, limits without a control group: another way through.
  go test -c -o "$dir/sandbox.test" ./internal/controller/sandbox
  go test -c -o "$dir/local.test" ./internal/controller/local
  mkdir "$dir/home"; echo x >"$dir/home/.profile"
  chmod -R a+rX "$dir"; chown -R nobody "$dir/home"
  (cd "$dir/home" && HOME="$dir/home" TMPDIR=/tmp runuser -u nobody -- "$dir/sandbox.test" -test.timeout 300s)
  (cd "$dir/home" && HOME="$dir/home" TMPDIR=/tmp runuser -u nobody -- "$dir/local.test" -test.timeout 300s -test.short -test.run 'Sandboxed|Limits|Killed')
  (cd "$dir/home" && HOME="$dir/home" TMPDIR=/tmp runuser -u nobody -- "$dir/fulgur" doctor)
fi
