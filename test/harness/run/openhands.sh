#!/bin/sh
# OpenHands' SDK: chat completions by LiteLLM. BASE_URL ends in /v1.
. "$(dirname "$0")/lib.sh"
need_pip openhands openhands-sdk==1.58.2 openhands-tools==1.58.2
become OPENAI_BASE_URL="$URL" OPENAI_API_KEY="$KEY" MODEL="$MODEL" LITELLM_LOCAL_MODEL_COST_MAP=True python "$HERE/openhands_task.py" "$PROMPT"
