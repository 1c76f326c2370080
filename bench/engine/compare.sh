#!/bin/sh
# Measures the embedded engine and the newest PyTorch side by side, one thread
# each, in turns, and prints the ratios of the best runs.
#
#   bench/engine/compare.sh [ROUNDS]
#
# PyTorch (several GB) is installed into $TORCH_VENV, by default a folder of the
# system's temporary folder, and stays there.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-3}
tmp=${TMPDIR:-/tmp}
venv=${TORCH_VENV:-$tmp/fulgur-torch}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import torch' 2>/dev/null || "$venv/bin/pip" install -q torch numpy
go build -o "$tmp/fulgur-bench-engine" ./bench/engine

# PyTorch at its best: no old OpenBLAS settings, memory kept rather than given back.
torch() {
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 \
		"$venv/bin/python" bench/engine/pytorch.py "$@"
}
for _ in $(seq "$rounds"); do
	"$tmp/fulgur-bench-engine" -only fixed/train/1T -steps 8 | tee -a "$out"
	torch train-eager 1 6 | tee -a "$out"
	torch train-compile 1 6 | tee -a "$out"
	for what in decode-b1 decode-b32; do
		"$tmp/fulgur-bench-engine" -only "fixed/$what/1T" -steps 4 | tee -a "$out"
	done
	torch decode 1 2 | tee -a "$out"
done
awk '
	{ split($1, n, "-eager|-compile"); key = n[1]; who = $2 == "torch" ? "torch" : "ours" }
	$3 > best[key, who] { best[key, who] = $3 }
	{ keys[key] = 1 }
	END { for (k in keys) printf "%-22s ours %8.0f, PyTorch %8.0f tok/cpu-s: %.2fx\n", k, best[k, "ours"], best[k, "torch"], best[k, "ours"] / best[k, "torch"] }
' "$out"
