#!/bin/sh
# mini-swe-agent with LiteLLM: chat completions, not streamed, actions as text. BASE_URL ends in /v1.
. "$(dirname "$0")/lib.sh"
need_pip mini-swe-agent mini-swe-agent==2.4.6
become OPENAI_BASE_URL="$URL" OPENAI_API_KEY="$KEY" MSWEA_CONFIGURED=true MSWEA_SILENT_STARTUP=1 LITELLM_LOCAL_MODEL_COST_MAP=True \
  mini -y --exit-immediately -c "${MINI_CONFIG:-$HERE/mini.yaml}" -m "openai/$MODEL" -o .traj.json -t "$PROMPT"
