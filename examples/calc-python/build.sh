#!/bin/sh
# build.sh DIR makes DIR/venv with the pinned SDK, and DIR/agent.py.
set -e
here=$(cd "$(dirname "$0")" && pwd)
python3 -m venv "$1/venv"
"$1/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
cp "$here/agent.py" "$1/agent.py"
