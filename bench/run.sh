#!/bin/sh
# Every measurement that needs only Go, one after the other; run it on a quiet
# machine. What needs more stands in README.md.
set -eu
cd "$(dirname "$0")/.."
go run ./bench/engine
bench/serving/run.sh
bench/gateway/run.sh
