#!/bin/sh
# opencode: chat completions, streamed, by its OpenAI-compatible provider. BASE_URL ends in /v1.
. "$(dirname "$0")/lib.sh"
need_npm opencode opencode-ai@1.18.33
become OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_AUTOUPDATE=1 FULGUR_KEY="$KEY" OPENCODE_CONFIG_CONTENT='{
  "provider":{"fulgur":{"npm":"@ai-sdk/openai-compatible","name":"fulgur","options":{"baseURL":"'"$URL"'","apiKey":"{env:FULGUR_KEY}"},
   "models":{"'"$MODEL"'":{"name":"'"$MODEL"'","tool_call":true,"limit":{"context":32768,"output":4096}}}}},
  "permission":"allow","share":"disabled","autoupdate":false,"snapshot":false}' \
  opencode run -m "fulgur/$MODEL" "$PROMPT"
