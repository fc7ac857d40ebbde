#!/usr/bin/env python3
"""An agent as a program whose tool asks the gate of its turn first, and waits for a human where the gate says so.

Its environment has NATS_URL (nats://[user:password@]host:port) and PAYMENTS (a file), and NATS_CREDS (the file of user
`agent`) if the server has users. It needs no package."""
import json
import os
import socket
import sys
import time
import urllib.parse
import uuid


class Bus:
    """As much of a NATS client as a question needs."""

    def __init__(self, url):
        at = urllib.parse.urlparse(url)
        # The gate answers inboxes alone; user `agent` may hear those that begin so.
        self.inbox = f"_INBOX_agent.{uuid.uuid4().hex}"
        self.socket = socket.create_connection((at.hostname, at.port or 4222), timeout=10)
        self.input = self.socket.makefile("rb")
        self.input.readline()
        options = {"verbose": False, "headers": True, "no_responders": True}
        if at.username:
            options |= {"user": at.username, "pass": at.password}
        if credentials := os.environ.get("NATS_CREDS"):
            with open(credentials) as file:
                options["jwt"] = next(line for line in file if line.startswith("ey")).strip()
        self.send(f"CONNECT {json.dumps(options)}\r\nSUB {self.inbox} 1\r\n")

    def send(self, text):
        self.socket.sendall(text.encode())

    def ask(self, subject, question):
        body = json.dumps(question)
        self.send(f"PUB {subject} {self.inbox} {len(body.encode())}\r\n{body}\r\n")
        while line := self.input.readline():
            words = line.decode().split()
            if words[0] == "PING":
                self.send("PONG\r\n")
            elif words[0] in ("MSG", "HMSG"):
                head = int(words[-2]) if words[0] == "HMSG" else 0
                message = self.input.read(int(words[-1]) + 2)
                return message[:head].decode(), message[head:-2]
        raise ConnectionError("the server has gone")


def gate(request, point, call, **more):
    """Asks until a broker answers; of the same attempt as often as need be."""
    question = {"turn": request["turn"], "session": request["session"], "hook_event_name": point,
                "tool_use_id": call["id"], "tool_name": call["name"], "tool_input": call["input"],
                "attempt": ATTEMPT, **more}
    while True:
        try:
            headers, answer = Bus(os.environ["NATS_URL"]).ask("nexus.svc.turn.gate", question)
            if "Nats-Service-Error-Code: 4" in headers:
                sys.exit(f"the gate refuses: {headers}")
            if not headers:
                return json.loads(answer)
        except OSError as error:
            print(error, file=sys.stderr)
        time.sleep(1)


def say(**line):
    print(json.dumps(line), flush=True)


def pay(amount):
    with open(os.environ["PAYMENTS"], "a") as payments:
        payments.write(f"{amount}\n")
    return f"paid {amount}"


ATTEMPT = uuid.uuid4().hex
request = json.loads(sys.stdin.readline())
# A model would say so. The call's id is the same whenever the turn is asked again, and no other call of it has it.
call = {"id": "pay-1", "name": "pay", "input": {"amount": 60000}}
before = gate(request, "PreToolUse", call)
if before["decision"] == "ask":
    # The program ends, and is started again with the same turn once somebody has decided.
    say(type="waiting", approval=before["approval"])
elif before["decision"] == "deny":
    say(type="answer", content=f"not paid: {before['reason']}")
else:
    call["input"] = before["tool_input"]
    result = pay(**call["input"])
    after = gate(request, "PostToolUse", call, tool_response=result)
    say(type="answer", content=str(after.get("tool_response", after.get("reason"))))
