#!/usr/bin/env bash
# Runs test/kubelet on one node of the real kind: the released kubelet on Debian's
# containerd and runc, under kubebox's control plane. Everything is in a network,
# mount and process namespace of its own and goes with it. Needs Go, root, a Debian
# to install from where something is missing, and for the first build the Go module
# proxy (after kubebox, two minutes).
#
#   test/kubelet/run.sh                    the suite
#   test/kubelet/run.sh -test.run Policy   arguments go to the tests
#   test/kubelet/run.sh --with CMD...      runs CMD on the node, with KUBECONFIG and FULGUR_TEST_KUBELET set
#
# KEEP=1 keeps the logs of a run that failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

install() { # install PROGRAM PACKAGE: Debian's, none of its services is started
  command -v "$1" >/dev/null || [ -x "$1" ] || missing+=("$2")
}

# archive NAME FOLDER PROGRAM: an image from a folder, as `docker save` writes it, on standard output.
archive() {
  local tmp sum; tmp=$(mktemp -d "$dir/image.XXXXXX")
  tar -C "$2" --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name -cf "$tmp/layer.tar" .
  sum=$(sha256sum "$tmp/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["%s"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$(go env GOARCH)" "$3" "$sum" >"$tmp/config.json"
  printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" >"$tmp/manifest.json"
  tar -C "$tmp" -cf - manifest.json config.json layer.tar
  rm -rf "$tmp"
}

outside() {
  if [ "$(id -u)" != 0 ]; then
    echo "test/kubelet needs root: a node makes namespaces, mounts and control groups. Run: sudo -E env PATH=\"\$PATH\" $0 $*" >&2
    exit 1
  fi
  missing=()
  install containerd containerd
  install runc runc
  install /usr/lib/cni/ptp containernetworking-plugins
  install nft nftables
  install ip iproute2
  # What graders run; the tests take the system's python3 into their pods.
  /usr/bin/python3 -m pytest --version >/dev/null 2>&1 || missing+=(python3-pytest)
  if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
  box=$("$here/../kube/run.sh" --build)
  kubelet=$("$here/../kube/run.sh" --build-kubelet)
  dir=$(mktemp -d "${TMPDIR:-/tmp}/kubelet.XXXXXX")
  trap tidy EXIT
  cd "$here/../.."
  CGO_ENABLED=0 go test -c -o "$dir/agent/agent" ./test/kubelet
  CGO_ENABLED=0 go build -ldflags '-s -w' -o "$dir/pause/pause" ./test/kubelet/pause
  mkdir -m 1777 "$dir/agent/tmp"
  mkdir "$dir/images"
  archive fulgur.test/agent:1 "$dir/agent" /agent >"$dir/images/agent.tar"
  archive fulgur.test/pause:1 "$dir/pause" /pause >"$dir/images/pause.tar"
  # The project's own, as a release has them.
  CGO_ENABLED=0 go build -trimpath -o "$dir/fulgur" ./cmd/fulgur
  go run ./tools/image -platforms "linux/$(go env GOARCH)" -compression 1 -out "$dir/built" >/dev/null
  mv "$dir"/built/*.tar "$dir/images/"
  unshare --mount --net --pid --fork --kill-child --mount-proc -- "$here/run.sh" --inside "$dir" "$box" "$kubelet" "$@"
}

# tidy removes what the namespaces do not take with them.
tidy() {
  local code=$?
  find /sys/fs/cgroup -depth -type d -path "*/k8s.io*" -exec rmdir {} + 2>/dev/null || true
  if [ "$code" != 0 ] && [ -n "${KEEP:-}" ]; then echo "the node's logs are in $dir"; else rm -rf --one-file-system "$dir"; fi
}

inside() {
  local dir=$1 box=$2 kubelet=$3; shift 3
  cd "$dir"
  # What programs write to fixed places is this namespace's own.
  mount -t tmpfs tmpfs /run
  mkdir -p /run/lock lib log cni /var/lib/kubelet
  mount --bind lib /var/lib/kubelet
  mount --bind log /var/log
  # The kubelet insists on these, which are the whole machine's: it reads what it wants to see.
  local name
  for name in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
    echo "${name#*=}" >"sysctl.${name//[\/=]/_}"
    mount --bind "sysctl.${name//[\/=]/_}" "/proc/sys/${name%=*}"
  done
  { cat /etc/hosts; echo "10.8.0.2 gateway.test"; } >hosts
  mount --bind hosts /etc/hosts
  network
  configure
  containerd --config containerd.toml >containerd.log 2>&1 &
  mkdir kube
  exec 9> >(exec "$box/kubebox" up --dir kube --nodes 0 --until-eof >up.log 2>&1)
  wait_for "containerd" ctr -a "$dir/containerd.sock" version
  for name in images/*.tar; do
    ctr -a "$dir/containerd.sock" -n k8s.io images import "$name" >/dev/null
  done
  wait_for "the control plane" test -f kube/ready
  "$kubelet/kubelet" --config kubelet.yaml --kubeconfig kube/kubeconfig --hostname-override node-1 --node-ip 10.9.9.1 \
    --root-dir "$dir/lib" --cert-dir "$dir/pki" >kubelet.log 2>&1 9>&- &
  export KUBECONFIG=$dir/kube/kubeconfig FULGUR_TEST_KUBELET=$dir
  if [ "${1:-}" = --with ]; then shift; "$@" 9>&-; return; fi
  cd "$here"
  "$dir/agent/agent" -test.v -test.timeout 15m "$@" 9>&-
}

wait_for() { # wait_for WHAT CMD...
  local what=$1; shift
  for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
  echo "$what did not start:" >&2
  tail -n 20 ./*.log >&2
  exit 1
}

# network: the node, and another machine beside it, whose addresses stand for the
# gateway's host (10.8.0.2), the cluster's DNS (10.8.0.3), the internet and the
# cloud's metadata.
network() {
  ip link set lo up
  ip addr add 10.9.9.1/32 dev lo
  ip netns add world
  ip link add world type veth peer name node netns world
  ip addr add 10.8.0.1/24 dev world
  ip link set world up
  ip -n world link set lo up
  ip -n world addr add 10.8.0.2/24 dev node
  local a
  for a in 10.8.0.3 1.1.1.1 8.8.8.8 169.254.169.254; do ip -n world addr add "$a/32" dev lo; done
  ip -n world link set node up
  ip -n world route add default via 10.8.0.1
  ip route add default via 10.8.0.2
  sysctl -qw net.ipv4.ip_forward=1
}

configure() {
  cat >cni/10-pods.conflist <<CNI
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "$dir/ipam", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
CNI
  cat >containerd.toml <<TOML
version = 2
root = "$dir/containerd"
state = "/run/containerd"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "fulgur.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML
  # Cgroups of either version, no systemd, and a root that may not raise limits: what
  # a container of CI is. Anonymous requests are the API server's, for logs.
  cat >kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
containerRuntimeEndpoint: unix://$dir/containerd.sock
failSwapOn: false
evictionHard: {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"}
imageGCHighThresholdPercent: 100
address: 0.0.0.0
readOnlyPort: 0
healthzPort: 0
clusterDNS: [10.8.0.3]
clusterDomain: cluster.test
featureGates: {KubeletInUserNamespace: true}
YAML
}

if [ "${1:-}" = --inside ]; then shift; inside "$@"; else outside "$@"; fi
