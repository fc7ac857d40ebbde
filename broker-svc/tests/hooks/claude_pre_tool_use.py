#!/usr/bin/env python3
"""A PreToolUse hook as it is written for Claude Code: tool_name and tool_input on stdin, exit 2 with a reason."""
import json
import sys

try:
    data = json.load(sys.stdin)
except json.JSONDecodeError as error:
    print(f"Error: invalid JSON input: {error}", file=sys.stderr)
    sys.exit(1)

tool_name = data.get("tool_name", "")
tool_input = data.get("tool_input", {})

if data.get("hook_event_name") != "PreToolUse" or not data.get("session_id"):
    sys.exit(1)

if tool_name == "create_hook" and "rm -rf" in tool_input.get("script", ""):
    print("Blocked: the script removes files", file=sys.stderr)
    sys.exit(2)

sys.exit(0)
