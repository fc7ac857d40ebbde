// One event against all hooks of a set. Hooks that answer at once are read with `Bun.peek`, without a turn of the
// event loop; those that wait are answered for when they settle, each bounded by its own time-out.

import { drainMicrotasks } from "bun:jsc";
import { asker } from "./calls.ts";
import { scriptEvent } from "./event.ts";
import { keepZone } from "./harden.ts";
import { failureOf, type Failure, type Hook, type HookSet } from "./hooks.ts";
import { lifeOf, type Life } from "./lives.ts";
import { FAILED, PASSED, RESULT, idle, noted, running } from "./note.ts";

// [slot, passed, latencies_us by index, [[index, us, result JSON]], [[index, us, message, stack]],
//  indexes still waiting,
//  [index, us] of each that passed late, flat]
export type Answer = [number, number, number[], [number, number, string][], [number, number, string, string | null][], number[], number[]];

const { parse, stringify } = JSON;
const { freeze } = Object;
const { status } = Bun.peek;
const peek = Bun.peek;
const now = performance.now.bind(performance);
const { min, max, round } = Math;
const setTimer = setTimeout;
const soon = queueMicrotask;
const TypedPromise = Promise;
const Bytes = Uint8Array;
const fromText: (text: string, coding: "base64") => Buffer = Buffer.from.bind(Buffer);
const fromBytes: (bytes: Uint8Array) => Buffer = Buffer.from.bind(Buffer);
const toText = Buffer.prototype.toString;

// Mirrors the host's bound on a result (result.rs), in characters: nothing longer crosses the pipe.
const MAX_RESULT = 256 * 1024;

type Context = {
  event: unknown;
  dbPath: string;
  search: (query: unknown, options?: object) => Promise<unknown>;
  llm: (prompt: unknown, options?: object) => Promise<unknown>;
  fetch?: (url: unknown, options?: object) => Promise<unknown>;
  readFile?: (index: unknown) => Promise<Uint8Array>;
  now: Date;
  hook: unknown;
};
type Waiting = { index: number; hook: Hook; since: number; until: number; life: Life | undefined };
type Open = { slot: number; answer: Answer; waiting: Map<number, Waiting> };

// For hooks whose source does not speak of these: nobody can be asking.
const notAsked = (what: string) => () => TypedPromise.reject(new Error(`${what}() is not known to be used by this hook`));
const search = notAsked("search");
const llm = notAsked("llm");

const open = new Map<number, Open>();
let report: (answers: Answer[]) => void = () => {};
let late: Open[] = [];
let alarm = Infinity;

/** `tell` gets the answers of hooks that settle after their event's first answer. */
export function onLate(tell: (answers: Answer[]) => void): void {
  report = tell;
}

/** Runs the hooks `only` (null = all) on one event and returns what is known at once. */
export function evaluate(set: HookSet, slot: number, at: number, wire: unknown, only: number[] | null, dbPath: string): Answer {
  const { hooks, generation } = set;
  keepZone();
  const event = scriptEvent(wire);
  const answer: Answer = [slot, 0, [], [], [], [], []];
  const count = only === null ? hooks.length : only.length;
  let waiting: Map<number, Waiting> | null = null;
  let before = now();
  for (let k = 0; k < count; k++) {
    const index = only === null ? k : only[k];
    const hook = hooks[index];
    running(slot, index, generation);
    const ctx: Context = { event, dbPath, search, llm, now: new Date(at), hook: hook.facts };
    if (hook.asks) letAsk(ctx, slot, index, generation);
    const results = answer[3].length;
    const failures = answer[4].length;
    const pending = call(answer, index, hook, before, ctx);
    // What it has left to do runs in its own name, not in that of the next.
    if (hook.lingers) drainMicrotasks();
    const after = now();
    const us = round((after - before) * 1000);
    answer[2].push(us);
    if (pending !== null) {
      const life = lifeOf(generation, index);
      if (life !== undefined) life.open++;
      (waiting ??= new Map()).set(index, { index, hook, since: before, until: before + hook.timeout, life });
      watch(slot, index, pending);
    } else if (answer[3].length > results) noted(slot, index, RESULT, us, answer[3][results][2]);
    else if (answer[4].length > failures) noted(slot, index, FAILED, us, answer[4][failures][2]);
    else noted(slot, index, PASSED, us, null);
    before = after;
  }
  idle();
  if (waiting !== null) {
    answer[5] = [...waiting.keys()];
    open.set(slot, { slot, answer: [slot, 0, [], [], [], [], []], waiting });
    for (const one of waiting.values()) wakeAt(one.until);
  }
  return answer;
}

function letAsk(ctx: Context, slot: number, index: number, generation: number): void {
  const ask = asker(slot, index, generation);
  ctx.search = (query, options) => ask("search", { ...options, query });
  ctx.llm = (prompt, options) => ask("llm", { ...options, prompt });
  ctx.fetch = async (url, options) => responseOf(await ask("fetch", { ...withBody(options), url: `${url}` }));
  ctx.readFile = async (index) => new Bytes(fromText(`${await ask("readFile", { index })}`, "base64"));
}

// Bytes travel to the host as base64: the frames are text.
function withBody(options: any): object {
  const body = options?.body;
  if (!(body instanceof Bytes)) return options;
  const { body: _, ...rest } = options;
  return { ...rest, body_base64: toText.call(fromBytes(body), "base64") };
}

// What a script reads of an answer: a part of what `Response` has, and headers as a plain object.
function responseOf({ status, headers, body }: any): unknown {
  const ok = status >= 200 && status < 300;
  return freeze({ ok, status, headers: freeze(headers), text: async () => body, json: async () => parse(body) });
}

// Calls one hook; null where it has answered, else the promise that is still pending.
function call(answer: Answer, index: number, hook: Hook, start: number, ctx: unknown): Promise<unknown> | null {
  if (hook.call === null) {
    fail(answer, index, 0, hook.failure!);
    return null;
  }
  try {
    let value: any = hook.call(ctx);
    if (!(value instanceof TypedPromise) && typeof value?.then === "function") value = TypedPromise.resolve(value);
    let state = status(value);
    if (state === "pending") {
      // What only awaits settled promises goes on now, while the note still names it.
      drainMicrotasks();
      state = status(value);
    }
    if (state === "pending") return value;
    const us = round((now() - start) * 1000);
    if (state === "rejected") {
      value.catch(() => {});
      fail(answer, index, us, failureOf(peek(value)));
    } else if (us > hook.timeout * 1000) fail(answer, index, us, timedOut(hook));
    else take(answer, index, us, peek(value), false);
  } catch (thrown) {
    fail(answer, index, round((now() - start) * 1000), failureOf(thrown));
  }
  return null;
}

function timedOut(hook: Hook): Failure {
  return { message: `timed out after ${hook.timeout} ms`, stack: null };
}

function fail(answer: Answer, index: number, us: number, failure: Failure): void {
  answer[4].push([index, us, failure.message, failure.stack]);
}

// A result that merely passes is counted; any other goes to the host, which judges it.
function take(answer: Answer, index: number, us: number, result: any, isLate: boolean): void {
  try {
    if (typeof result !== "object" || result === null) {
      fail(answer, index, us, { message: `answered ${Bun.inspect(result).slice(0, 100)}, expected an object`, stack: null });
    } else if (result.fire === false && !result.disableHook && !result.disable_hook) {
      answer[1]++;
      if (isLate) answer[6].push(index, us);
    } else {
      const text = stringify(result);
      if (text === undefined) fail(answer, index, us, { message: "answered something that is not JSON", stack: null });
      else if (text.length > MAX_RESULT) fail(answer, index, us, { message: `answered ${text.length} characters, at most ${MAX_RESULT} are allowed`, stack: null });
      else answer[3].push([index, us, text]);
    }
  } catch (thrown) {
    fail(answer, index, us, failureOf(thrown));
  }
}

function watch(slot: number, index: number, pending: Promise<unknown>): void {
  pending.then(
    (result) => settle(slot, index, (answer, us) => take(answer, index, us, result, true)),
    (thrown) => settle(slot, index, (answer, us) => fail(answer, index, us, failureOf(thrown))),
  );
}

function settle(slot: number, index: number, record: (answer: Answer, us: number) => void): void {
  const event = open.get(slot);
  const one = event?.waiting.get(index);
  if (event === undefined || one === undefined) return;
  const at = now();
  event.waiting.delete(index);
  if (one.life !== undefined) one.life.open--;
  if (at >= one.until) fail(event.answer, index, round((at - one.since) * 1000), timedOut(one.hook));
  else record(event.answer, round((at - one.since) * 1000));
  if (event.waiting.size === 0) open.delete(slot);
  if (late.length === 0) soon(flushLate);
  if (!late.includes(event)) late.push(event);
}

function flushLate(): void {
  const answers = late.map((event) => {
    const answer = event.answer;
    answer[5] = [...event.waiting.keys()];
    event.answer = [event.slot, 0, [], [], [], [], []];
    return answer;
  });
  late = [];
  report(answers);
}

// One timer serves all waiting hooks: it rings for the earliest.
function wakeAt(until: number): void {
  if (until >= alarm) return;
  alarm = until;
  setTimer(ring, max(1, min(until - now() + 1, 0x7fffffff)));
}

function ring(): void {
  const at = now();
  alarm = Infinity;
  for (const [slot, event] of open) {
    for (const [index, one] of event.waiting) {
      if (one.until <= at) settle(slot, index, () => {});
      else wakeAt(one.until);
    }
  }
}
