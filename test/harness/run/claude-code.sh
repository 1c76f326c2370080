#!/bin/sh
# Claude Code: Anthropic Messages, streamed. BASE_URL is what stands before /v1/messages.
. "$(dirname "$0")/lib.sh"
need_npm claude-code @anthropic-ai/claude-code@2.1.332
become ANTHROPIC_BASE_URL="$URL" ANTHROPIC_API_KEY="$KEY" ANTHROPIC_MODEL="$MODEL" ANTHROPIC_DEFAULT_HAIKU_MODEL="$MODEL" \
  CLAUDE_CODE_SUBAGENT_MODEL="$MODEL" CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 IS_SANDBOX=1 \
  claude -p "$PROMPT" --dangerously-skip-permissions --output-format text
