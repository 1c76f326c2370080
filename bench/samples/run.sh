#!/usr/bin/env bash
# Measures how calls become samples beside the reference's adapter, on the same data
# in one run: see ../README.md. Linux; about 3 minutes, and 3 GB of memory.
#
#   bench/samples/run.sh [-rollouts 1000] [-calls 30] [-tokens 16384] [-breaks 0.08] [-shared]
#
# The reference (agentlightning 1.0.2 with torch, tensordict and verl from PyPI: 6 GB on
# disk, needs Python 3.12) is installed once, into the user's cache; without it ours is
# measured alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
reference=${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/bench/adapter-1.0.2
works() { "$reference/bin/python" -c 'import verl, agentlightning.verl.rollout_adapter' >/dev/null 2>&1; }
if ! works; then
	for python in python3.12 python3.13 python3 "$HOME"/.pyenv/versions/3.1[23]*/bin/python; do
		"$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || continue
		echo "installing agentlightning 1.0.2, torch, tensordict and verl from PyPI" >&2
		rm -rf "$reference" && "$python" -m venv "$reference" && "$reference/bin/pip" install -q uv &&
			uv() { "$reference/bin/uv" pip install -q --python "$reference/bin/python" "$@"; } &&
			uv torch==2.6.0 tensordict==0.8.3 numpy==2.2.6 agentlightning==1.0.2 &&
			uv --no-deps verl==0.7.1 && # its own dependencies would bring what only GPUs need
			uv ray pandas packaging transformers pybind11 codetiming hydra-core pyarrow datasets && break
	done || true
fi
args=()
works && args+=(-reference "$reference/bin/python" -script bench/samples/reference.py) || echo "the reference could not be installed" >&2
exec go run ./bench/samples "${args[@]}" "$@"
