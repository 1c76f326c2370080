#!/usr/bin/env bash
# update.sh 1.37.3: writes go.mod and go.sum anew for another release of Kubernetes.
# k8s.io/kubernetes replaces its staging modules by folders of its own, which a
# module that requires it must replace again, by the published ones. etcd's version
# and what virtual-kubelet needs follow from go mod tidy.
set -euo pipefail
cd "$(dirname "$0")"
release=$1 staging=0.${1#1.}
mod=$(go mod download -json "k8s.io/kubernetes@v$release" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
{
  printf 'module github.com/fulgur-rl/fulgur/test/kube\n\ngo 1.26.0\n\n'
  sed -n 's/^\(godebug.*\)/\1/p' "$mod"
  printf '\nrequire (\n\tk8s.io/kubernetes v%s\n\tgithub.com/virtual-kubelet/virtual-kubelet %s\n)\n\nreplace (\n' "$release" \
    "$(sed -n 's/.*virtual-kubelet\/virtual-kubelet \(v[0-9.]*\).*/\1/p' go.mod)"
  sed -n "s#^\t\(k8s.io/[a-z-]*\) => ./staging.*#\t\1 => \1 v$staging#p" "$mod"
  echo ")"
} > go.mod.new
mv go.mod.new go.mod
go mod tidy
sed -i "s/v=v1\.[0-9.]*/v=v$release/; s/gitMinor=[0-9]*/gitMinor=$(cut -d. -f2 <<<"$release")/" run.sh
