// The process that runs hook scripts. It holds no credential and no connection: events come in on stdin, answers go
// out on stdout (frames.ts), and a note in a mapped file tells the host who is running (note.ts).

import { answered } from "./calls.ts";
import { evaluate, onLate, type Answer } from "./evaluate.ts";
import { divertOutput, receive, send } from "./frames.ts";
import { harden } from "./harden.ts";
import { count, failureOf, loadHooks, type HookSet } from "./hooks.ts";
import { forget, onStray } from "./note.ts";
import { dbPath } from "./query.ts";
import { provideSqlite } from "./sqlite.ts";
import { attributeTimers } from "./timers.ts";

// After so many milliseconds of a batch what is known is sent, so that a slow hook does not hold its neighbours.
const FLUSH_MS = 2;

const now = performance.now.bind(performance);
const exit = process.reallyExit.bind(process);

let set: HookSet = { generation: 0, hooks: [] };
let loading: unknown[] | null = null;

// {t: "load", g, hooks, drop} | {t: "ping", n} | {t: "ev", c, e: [{s, n, o?, v}]} | {t: "ans", a}
function handle(message: any): void {
  if (message.t === "ping") return send({ t: "pong", n: message.n });
  if (message.t === "ans") return answered(message.a);
  if (loading !== null) {
    loading.push(message);
    return;
  }
  if (message.t === "ev") batch(message);
  else if (message.t === "load") void load(message);
}

function batch(message: any): void {
  if (message.c !== undefined) count(set, message.c);
  let answers: Answer[] = [];
  let since = now();
  for (const { s, n, o, v } of message.e) {
    answers.push(answerTo(s, n, v, o ?? null));
    if (now() - since > FLUSH_MS) {
      tell(answers);
      answers = [];
      since = now();
    }
  }
  if (answers.length > 0) tell(answers);
}

function tell(answers: Answer[]): void {
  send({ r: answers });
  forget();
}

function answerTo(slot: number, at: number, wire: unknown, only: number[] | null): Answer {
  try {
    return evaluate(set, slot, at, wire, only, dbPath);
  } catch (thrown) {
    const { message, stack } = failureOf(thrown);
    const indexes = only ?? set.hooks.map((_, index) => index);
    const failures = indexes.map((i): [number, number, string, string | null] => [i, 0, `event cannot be shown to scripts: ${message}`, stack]);
    return [slot, 0, [], [], failures, [], []];
  }
}

// What arrives while modules load waits, so that no event meets half a set.
async function load(message: any): Promise<void> {
  const waiting: unknown[] = (loading = []);
  set = await loadHooks(message.g, message.hooks, message.drop);
  loading = null;
  send({ t: "loaded", g: message.g, bad: set.hooks.flatMap((h, i) => (h.failure === null ? [] : [[i, h.failure.message]])) });
  for (const next of waiting) handle(next);
}

// A script's stray promise or timer must not end everybody's process. Whose timer it is is known; of a promise the
// stack names the file.
function stray(thrown: unknown, by: [number, number] | null): void {
  const { message, stack } = failureOf(thrown);
  send({ t: "stray", message, stack, by });
}

function forbid(name: string): void {
  Object.defineProperty(process, name, {
    value: () => { throw new Error(`process.${name} is not allowed in a hook`); },
    writable: false,
    configurable: false,
  });
}

divertOutput();
attributeTimers();
provideSqlite();
// What ends or replaces this process, reaches others or native code, or takes the runner's errors from it. Before anything
// imports `node:process`, which keeps what it finds.
const FORBIDDEN = [
  "exit", "reallyExit", "abort", "execve", "kill", "_kill", "_debugProcess", "_debugEnd", "dlopen", "chdir",
  "setUncaughtExceptionCaptureCallback",
];
for (const name of FORBIDDEN) if (name in process) forbid(name);
harden();
onStray(stray);
process.on("unhandledRejection", (thrown) => stray(thrown, null));
process.on("uncaughtException", (thrown) => stray(thrown, null));
onLate((answers) => send({ r: answers }));
receive(handle, () => exit(0));
send({ t: "ready" });
