#!/bin/sh
# Codex: Responses, streamed. BASE_URL ends in /v1.
. "$(dirname "$0")/lib.sh"
need_npm codex @openai/codex@0.171.0
become FULGUR_KEY="$KEY" codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m "$MODEL" \
  -c model_provider=fulgur -c check_for_update_on_startup=false -c analytics.enabled=false \
  -c "model_providers.fulgur={name='fulgur',base_url='$URL',env_key='FULGUR_KEY',wire_api='responses'}" "$PROMPT"
