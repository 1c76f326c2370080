#!/usr/bin/env bash
# Installs deploy/ in a cluster of test/kube's, images included, and lets calc train
# there: test/kube/run.sh --with test/deploy/run.sh (make test-deploy).
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${FULGUR_TEST_KUBE:?is set by test/kube/run.sh --with}"
arch=$(go env GOARCH)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go run ./tools/image -platforms "linux/$arch" -compression 1 -out "$dir"
for image in fulgur fulgur-calc-agent; do
  rm -rf "$FULGUR_TEST_KUBE/images/$image"
  cp -r "$dir/$image" "$FULGUR_TEST_KUBE/images/$image"
done
go test -count=1 -timeout 15m "$@" ./test/deploy
