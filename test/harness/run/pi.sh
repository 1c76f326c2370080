#!/bin/sh
# pi: chat completions, streamed. BASE_URL ends in /v1.
. "$(dirname "$0")/lib.sh"
need_npm pi @mariozechner/pi-coding-agent@0.73.1
home
mkdir -p "$H/.pi/agent"
cat >"$H/.pi/agent/models.json" <<J
{"providers":{"fulgur":{"baseUrl":"$URL","api":"openai-completions","apiKey":"$KEY","models":[
 {"id":"$MODEL","name":"$MODEL","reasoning":false,"input":["text"],"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0},
  "contextWindow":32768,"maxTokens":4096}]}}}
J
become PI_OFFLINE=1 pi --provider fulgur --model "$MODEL" -p "$PROMPT"
