#!/usr/bin/env bash
# Measures fulgur serve beside the reference gateway, nginx and a Go reverse proxy, in
# one run: see ../README.md. Linux, on a quiet machine; under 3 minutes, with FULL=1 some 15.
#
#   bench/gateway/run.sh [-parts calls,histories,streams,rollouts,holds] [-profiles DIR]
#
# FULGUR=BINARY is measured in place of this checkout's. The reference
# (agentlightning from PyPI, needs Python 3.12) is installed once, into the user's cache;
# without it its figures from a quiet machine stand in. nginx is used where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
reference=${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/bench/agentlightning-1.0.2
if [ ! -x "$reference/bin/agl-server" ]; then
	for python in python3.12 python3.13 python3 "$HOME"/.pyenv/versions/3.1[23]*/bin/python; do
		"$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || continue
		echo "installing agentlightning 1.0.2 from PyPI" >&2
		rm -rf "$reference" && "$python" -m venv "$reference" && "$reference/bin/pip" install -q agentlightning==1.0.2 && break
	done || true
fi
args=()
[ -x "$reference/bin/agl-server" ] && args+=(-reference "$reference/bin/agl-server") || echo "the reference could not be installed" >&2
nginx=$(PATH=$PATH:/usr/sbin command -v nginx) && args+=(-nginx "$nginx") || echo "nginx is not installed: it is left out" >&2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bin=${FULGUR:-}
[ -n "$bin" ] || { bin=$tmp/fulgur; go build -o "$bin" ./cmd/fulgur; }
go build -o "$tmp/gateway" ./bench/gateway
[ -z "${FULL:-}" ] || args+=(-full)
"$tmp/gateway" -fulgur "$(realpath "$bin")" "${args[@]}" "$@"
