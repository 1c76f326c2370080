#!/usr/bin/env bash
# Runs the Kubernetes tests (test/cluster) on a cluster of their own: builds
# kubebox where this version of it is not in the cache (13 to 20 minutes on two
# cores, once), starts it in a temporary folder on free loopback ports, and ends
# it, whatever happens. Needs Go, root (containers are namespaces and mounts),
# and for the first build the Go module proxy.
#
#   test/kube/run.sh                     the suite
#   test/kube/run.sh -test.run CK_01     arguments go to the tests
#   test/kube/run.sh --build             only builds, prints the folder of the binaries
#   test/kube/run.sh --build-kubelet     the same of the kubelet that test/kubelet needs
#   test/kube/run.sh --with CMD...       runs CMD, in this folder, with KUBECONFIG and FULGUR_TEST_KUBE set
set -euo pipefail
from=$PWD
cd "$(dirname "$0")"

# build NAME PACKAGES prints the folder of the binaries; it is kept by what goes into them.
build() {
  local name=$1 key cache tmp began=$SECONDS files
  # What is built for the kubelet is no part of kubebox.
  case $name in kubebox) files=(cmd internal) ;; *) files=("$name") ;; esac
  key=$( (go env GOVERSION GOARCH; cat go.mod go.sum; find "${files[@]}" -name '*.go' ! -name '*_test.go' | LC_ALL=C sort | xargs cat) | sha256sum | cut -c1-16)
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/$name
  if [ ! -x "$cache/$key/$name" ]; then
    echo "building $name: 13 to 20 minutes where Go's own build cache has none of it" >&2
    mkdir -p "$cache"
    tmp=$(mktemp -d "$cache/new.XXXXXX")
    local v=v1.37.2 x=k8s.io/component-base/version
    GOBIN=$tmp CGO_ENABLED=0 go install -buildvcs=false -ldflags \
      "-s -w -X $x.gitVersion=$v -X $x.gitMajor=1 -X $x.gitMinor=37 -X k8s.io/client-go/pkg/version.gitVersion=$v" "$2" >&2
    rm -rf "${cache:?}/$key"
    mv "$tmp" "$cache/$key"
    # Older versions are 100 to 150 MB each.
    ls -1dt "$cache"/*/ | tail -n +3 | xargs -r rm -rf
    echo "built in $((SECONDS - began)) s" >&2
  fi
  echo "$cache/$key"
}

case ${1:-} in
--build) build kubebox ./cmd/...; exit ;;
--build-kubelet) build kubelet ./kubelet; exit ;;
esac
if [ "$(id -u)" != 0 ]; then
  echo "test/kube needs root: its node makes mounts, namespaces and control groups for containers. Run: sudo -E env PATH=\"\$PATH\" $0 $*" >&2
  exit 1
fi
if ! unshare -m -p -i -u --fork true 2>/dev/null; then
  echo "test/kube needs new mount, pid, ipc and uts namespaces, and unshare was refused: in a container, run that one privileged" >&2
  exit 1
fi

bin=$(build kubebox ./cmd/...)
dir=$(mktemp -d "${TMPDIR:-/tmp}/kubebox.XXXXXX")
mkdir -p "$dir/images"
# The cluster lives as long as this end of the pipe does.
exec 9> >(exec "$bin/kubebox" up --dir "$dir" --images "$dir/images" --nodes 2 --until-eof >"$dir/up.log" 2>&1)
up=$!
finish() {
  local code=$?
  exec 9>&-
  for _ in $(seq 100); do kill -0 "$up" 2>/dev/null || break; sleep 0.1; done
  if [ "$code" = 0 ] || [ -z "${KEEP:-}" ]; then rm -rf "$dir"; else echo "the cluster's logs are in $dir"; fi
}
trap finish EXIT
until [ -f "$dir/ready" ]; do
  kill -0 "$up" 2>/dev/null || { cat "$dir/up.log"; tail -n 5 "$dir"/*.log; exit 1; }
  sleep 0.1
done
grep -o 'ready;.*' "$dir/up.log" >/dev/null && echo "the cluster was ready in $(cat "$dir/ready") s"

export KUBECONFIG=$dir/kubeconfig FULGUR_TEST_KUBE=$dir
if [ "${1:-}" = --with ]; then shift; cd "$from"; "$@" 9>&-; exit; fi
cd ../..
go test -c -o "$dir/cluster.test" ./test/cluster 9>&-
cd test/cluster
"$dir/cluster.test" -test.v -test.timeout 20m "$@" 9>&-
