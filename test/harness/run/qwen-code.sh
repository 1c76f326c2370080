#!/bin/sh
# qwen-code: chat completions, streamed. BASE_URL ends in /v1.
. "$(dirname "$0")/lib.sh"
need_npm qwen-code @qwen-code/qwen-code@0.24.4
become OPENAI_BASE_URL="$URL" OPENAI_API_KEY="$KEY" OPENAI_MODEL="$MODEL" QWEN_TELEMETRY_ENABLED=false \
  qwen --auth-type openai --yolo -p "$PROMPT"
