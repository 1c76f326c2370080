#!/bin/sh
# The package agentlightning as it is, against Fulgur: ../agl.py. In place of a prompt: the model server's URL.
. "$(dirname "$0")/lib.sh"
need_pip agentlightning agentlightning==1.0.2 numpy
become AGL_URL="$URL" AGL_SERVER_KEY="$KEY" MODEL_URL="$PROMPT" MODEL="$MODEL" PYTHONPATH="$HERE/.." python "$HERE/../agl.py"
