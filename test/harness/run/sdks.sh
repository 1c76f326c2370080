#!/bin/sh
# The official SDKs against Fulgur: ../sdks.py. In place of a prompt: the names of the parts.
. "$(dirname "$0")/lib.sh"
need_pip sdks openai==3.57.0 anthropic==2.14.0
become GATEWAY="$URL" KEY="$KEY" MODEL="$MODEL" python "$HERE/../sdks.py" "$PROMPT"
