// Timers run in the name of the hook that set them, so that one that loops is not blamed on whoever waits. What
// resolves a promise in such a turn is followed to its end before the turn is over: the code after an `await` runs in
// that name as well. They end with the hook: what is left to run of one that has left the set does not run.

import { promisify } from "node:util";
import { inItsName } from "./note.ts";

const TypedPromise = Promise;

function replace(holder: any, name: string, value: unknown): void {
  try {
    holder[name] = value;
  } catch {
    // What cannot be replaced runs in nobody's name.
  }
}

/** Replaces what calls back later, everywhere scripts find it. Before the built-ins are frozen. */
export function attributeTimers(): void {
  const global = globalThis as any;
  const timers: any = require("node:timers");
  const promises: any = require("node:timers/promises");
  for (const name of ["setTimeout", "setInterval", "setImmediate"]) {
    const original = global[name];
    const clear = name === "setInterval" ? global.clearInterval : () => {};
    const named: any = (callback: unknown, ...rest: unknown[]) => {
      const handle: unknown = original(typeof callback === "function" ? inItsName(callback, true, () => clear(handle)) : callback, ...rest);
      return handle;
    };
    if (name !== "setInterval") {
      const wait = name === "setTimeout"
        ? (ms?: number, value?: unknown, options?: any) => options?.signal !== undefined ? promised(ms, value, options) : new TypedPromise((done) => named(done, ms, value))
        : (value?: unknown, options?: any) => options?.signal !== undefined ? promised(value, options) : new TypedPromise((done) => named(done, value));
      const promised = promises[name];
      replace(named, promisify.custom as any, wait);
      replace(promises, name, wait);
    }
    replace(global, name, named);
    replace(timers, name, named);
  }
  const { setTimeout: later } = global;
  const sleep = (ms: number | Date) => new TypedPromise<void>((done) => later(done, typeof ms === "number" ? ms : Math.max(0, Number(ms) - Date.now())));
  replace(Bun, "sleep", sleep);
  const soon = global.queueMicrotask;
  replace(global, "queueMicrotask", (callback: unknown) => soon(typeof callback === "function" ? inItsName(callback, false) : callback));
  const next = process.nextTick.bind(process);
  replace(process, "nextTick", (callback: unknown, ...rest: unknown[]) => (next as any)(typeof callback === "function" ? inItsName(callback, false) : callback, ...rest));
}
