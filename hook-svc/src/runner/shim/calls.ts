// Calls of scripts to the host (`ctx.search`, `ctx.llm`, `ctx.fetch`): all of one turn of the event loop travel in one frame, and
// an answer wakes exactly the script that asked. A call is named by event, hook and its number among that hook's calls,
// so an event that is evaluated again after a death is not asked for twice.

import { drainMicrotasks } from "bun:jsc";
import { send } from "./frames.ts";
import { idle, running } from "./note.ts";

type Ask = (name: string, args: unknown) => Promise<unknown>;
type Pending = { slot: number; index: number; generation: number; resolve: (value: unknown) => void; reject: (error: unknown) => void };
// [slot, hook index, call number, name, arguments as JSON]
type Call = [number, number, number, string, string];
// [slot, hook index, call number, [value] | null, [code, message] | null]
type Answered = [number, number, number, [unknown] | null, [string, string] | null];

const { stringify } = JSON;
const TypedPromise = Promise;
const soon = queueMicrotask;
const pending = new Map<string, Pending>();
let queued: Call[] = [];

function refusal(code: string, message: string): Error {
  const error: any = new Error(message);
  error.name = code === "not_available" ? "NotAvailableError" : "HostCallError";
  error.code = code;
  return error;
}

/** What one hook asks with while it evaluates one event. */
export function asker(slot: number, index: number, generation: number): Ask {
  let calls = 0;
  return (name, args) =>
    new TypedPromise((resolve, reject) => {
      const text = stringify(args) ?? "null";
      const number = calls++;
      pending.set(`${slot}:${index}:${number}`, { slot, index, generation, resolve, reject });
      if (queued.length === 0) soon(flush);
      queued.push([slot, index, number, name, text]);
    });
}

function flush(): void {
  const k = queued;
  queued = [];
  send({ t: "call", k });
}

/** Wakes those whose calls are answered, one after the other, so that the note names who is running. */
export function answered(answers: Answered[]): void {
  for (const [slot, index, number, value, error] of answers) {
    const key = `${slot}:${index}:${number}`;
    const one = pending.get(key);
    if (one === undefined) continue;
    pending.delete(key);
    running(slot, index, one.generation);
    if (error !== null) one.reject(refusal(error[0], error[1]));
    else one.resolve(value![0]);
    drainMicrotasks();
    idle();
  }
}
