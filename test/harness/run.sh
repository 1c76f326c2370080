#!/usr/bin/env bash
# Trains agents that are built on other people's software: the calc agent on
# OpenAI's Python SDK as a warm worker, and one that knows Agent Lightning's
# variables only. Needs python3 with venv, and PyPI (or pip's cache) for the
# SDK, which goes into a virtual environment below a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  echo "installing python3-venv"
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
fi

FULGUR_HARNESS=1 go test ./test/harness -count=1 -v "$@"
