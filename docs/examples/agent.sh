#!/usr/bin/env bash
# An agent as a program in a few lines of shell: one question as JSON on standard input, one line as the answer.
set -euo pipefail
read -r request
# Where jq is at hand: jq -r '.messages[-1].content' <<<"$request"
message=$(sed -E 's/.*"content":"([^"]*)"[^"]*\].*/\1/' <<<"$request")
printf '{"type": "answer", "content": "bash heard: %s"}\n' "$message"
