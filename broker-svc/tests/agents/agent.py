"""An agent for Nexus in Python 3 with nothing but a socket: agent.py HOST:PORT PERSONA MEMORY live|die

It answers AgentRequest/1 with AgentReply/1. MEMORY is its file of finished turns: a question for a turn that is
there is answered from it, so that a repeated question is not worked on twice. In the mode `die` it ends after its
first turn is noted and before it answers.
"""
import json
import os
import socket
import sys

address, persona, memory, mode = sys.argv[1:5]
host, port = address.split(":")
wire = socket.create_connection((host, int(port))).makefile("rwb")


def send(line, payload=None):
    wire.write(line.encode() + b"\r\n" + (payload + b"\r\n" if payload is not None else b""))
    wire.flush()


def finished():
    try:
        with open(memory, encoding="utf-8") as lines:
            return {turn: answer for turn, answer in map(json.loads, lines)}
    except FileNotFoundError:
        return {}


def work(turn, request):
    known = finished()
    if turn in known:
        return known[turn]
    answer = {"content": "python: " + request["messages"][-1]["content"]}
    with open(memory, "a", encoding="utf-8") as lines:
        lines.write(json.dumps([turn, answer]) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    if mode == "die":
        os._exit(9)
    return answer


def headers(block):
    pairs = (line.split(":", 1) for line in block.decode().split("\r\n")[1:] if ":" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


wire.readline()  # INFO
send('CONNECT {"verbose":false,"headers":true,"no_responders":true,"lang":"python","version":"0"}')
send(f"SUB nexus.agent.{persona} agents 1")
send("PING")
while line := wire.readline():
    words = line.decode().split()
    if words[:1] == ["PING"]:
        send("PONG")
    if words[:1] != ["HMSG"]:
        continue
    reply, head, total = words[3], int(words[-2]), int(words[-1])
    message = wire.read(total + 2)
    turn = headers(message[:head])["nexus-turn"]
    answer = json.dumps(work(turn, json.loads(message[head:total]))).encode()
    send(f"PUB {reply} {len(answer)}", answer)
