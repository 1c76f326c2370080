# Shared by the scripts beside it: sourced, not run.
#
#   NAME.sh --install                        installs the pinned version, once
#   NAME.sh BASE_URL KEY WORKDIR PROMPT      installs, then becomes the harness: in WORKDIR, with an empty environment and a new HOME
#
#   HARNESS_CACHE   where versions are installed and kept (default: ~/.cache/fulgur/harness)
#   HARNESS_MODEL   model name to send (default: policy)
#   HARNESS_PYTHON  the Python that makes virtual environments (default: the first of 3.12 or newer that is found)
set -eu
case $# in
1) [ "$1" = --install ] || { echo "usage: $0 --install | BASE_URL KEY WORKDIR PROMPT" >&2; exit 64; }; URL='' KEY='' WORK='' PROMPT='' ;;
4) URL=${1%/} KEY=$2 WORK=$3 PROMPT=$4 ;;
*) echo "usage: $0 --install | BASE_URL KEY WORKDIR PROMPT" >&2; exit 64 ;;
esac
HERE=$(cd "$(dirname "$0")" && pwd)
MODEL=${HARNESS_MODEL:-policy}
CACHE=${HARNESS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/harness}
mkdir -p "$CACHE"

# installed NAME WHAT: true if that is what is there; else the folder is made
# anew. The mark is written last, so a broken installation is redone.
installed() {
  BIN=$CACHE/$1/bin MARK=$CACHE/$1/.ok WANT=$2
  [ -e "$MARK" ] && [ "$(cat "$MARK")" = "$2" ] && return
  rm -rf "${CACHE:?}/$1"; mkdir -p "$CACHE/$1"
  return 1
}

need_npm() { # NAME PACKAGE@VERSION
  if ! installed "$1" "$2"; then
    echo "installing $2" >&2
    npm install --prefix "$CACHE/$1" --no-audit --no-fund --loglevel=error "$2" >&2
    ln -s node_modules/.bin "$BIN"; echo "$WANT" >"$MARK"
  fi
  if [ -z "$WORK" ]; then exit 0; fi
}

find_python() {
  for p in "${HARNESS_PYTHON:-}" python3 python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3; do
    if [ -n "$p" ] && "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then echo "$p"; return; fi
  done
  echo "Python 3.12 or newer is needed, with venv: set HARNESS_PYTHON" >&2
  return 1
}

need_pip() { # NAME REQUIREMENT...
  name=$1; shift
  if ! installed "$name" "$*"; then
    python=$(find_python)
    echo "installing $*" >&2
    "$python" -m venv "$CACHE/$name"
    "$BIN/pip" install -q --disable-pip-version-check "$@" >&2
    if [ -n "${ALONE:-}" ]; then "$BIN/pip" install -q --disable-pip-version-check --no-deps "$ALONE" >&2; fi
    echo "$WANT" >"$MARK"
  fi
  if [ -z "$WORK" ]; then exit 0; fi
}

# home makes a new HOME, beside the work.
home() { H=$(mktemp -d "$WORK.home.XXXXXX"); }

# become NAME=VALUE... COMMAND...: becomes the harness.
become() {
  [ -n "${H:-}" ] || home
  cd "$WORK"
  exec env -i HOME="$H" PATH="$BIN:/usr/local/bin:/usr/bin:/bin" LANG=C.UTF-8 TERM=dumb NO_COLOR=1 PYTHONDONTWRITEBYTECODE=1 "$@" </dev/null
}
