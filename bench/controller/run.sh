#!/usr/bin/env bash
# Measures fulgur controller beside the reference's local controller, in one run: see
# ../README.md. Linux, on a quiet machine; some 3 minutes, most of it the reference's.
#
#   bench/controller/run.sh [-parts start,rollouts,queue]
#
# FULGUR=BINARY is measured in place of this checkout's. The reference
# (agentlightning from PyPI, needs Python 3.12) is installed once, into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
reference=${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/bench/agentlightning-1.0.2
if [ ! -x "$reference/bin/agl-controller" ]; then
	for python in python3.12 python3.13 python3 "$HOME"/.pyenv/versions/3.1[23]*/bin/python; do
		"$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || continue
		echo "installing agentlightning 1.0.2 from PyPI" >&2
		rm -rf "$reference" && "$python" -m venv "$reference" && "$reference/bin/pip" install -q agentlightning==1.0.2 && break
	done || true
fi
args=()
[ -x "$reference/bin/agl-controller" ] && args+=(-reference "$reference/bin/python") || echo "the reference could not be installed: it is left out" >&2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bin=${FULGUR:-}
[ -n "$bin" ] || { bin=$tmp/fulgur; go build -o "$bin" ./cmd/fulgur; }
go build -o "$tmp/controller" ./bench/controller
"$tmp/controller" -fulgur "$(realpath "$bin")" "${args[@]}" "$@"
