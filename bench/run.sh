#!/bin/sh
# Every measurement that needs only Go, one after the other; run it on a quiet
# machine. What needs more stands in README.md. bench/gateway takes the reference and
# nginx along where it can have them.
set -eu
cd "$(dirname "$0")/.."
go run ./bench/engine
bench/serving/run.sh
bench/gateway/run.sh
