#!/usr/bin/env python3
"""An agent as a program: one question as JSON on standard input, JSON lines on standard output."""
import json
import sys


def say(**line):
    print(json.dumps(line), flush=True)


request = json.loads(sys.stdin.readline())
message = request["messages"][-1]["content"]
# Pieces are shown as they come; the answer is what was said in them.
for piece in ("python heard: ", message):
    say(type="text", text=piece)
say(type="answer")
