// The hooks of one set: loaded modules and what each script reads as `ctx.hook`.

import { end, lives } from "./lives.ts";
import { idle, running } from "./note.ts";
import { provideSqlite } from "./sqlite.ts";

export type Failure = { message: string; stack: string | null };

type Facts = { id: string; name: string; created_at: number; trigger_count: number; last_triggered?: number };

export type Hook = {
  call: ((ctx: unknown) => unknown) | null;
  failure: Failure | null;
  facts: Readonly<Facts>;
  timeout: number;
  // Whether its source speaks of `search`, `llm` or `fetch`.
  asks: boolean;
  // Whether its source speaks of what goes on after it has answered.
  lingers: boolean;
};

export type HookSet = { generation: number; hooks: Hook[] };

// [path | null where it may not be loaded, id, name, created_at, timeout_ms, trigger_count, last_triggered | null,
//  whether its source speaks of `search`, `llm` or `fetch`, whether of what goes on after it has answered]
export type Wanted = [string | null, string, string, number, number, number, number | null, boolean, boolean];

const { freeze } = Object;
const MAX_TEXT = 4000;
// How long a module's top-level `await` may take.
const MAX_LOAD_MS = 1000;
const setTimer = setTimeout;
// What each file's default export is. The engine's own cache of modules is one that every script can write.
const loaded = new Map<string, unknown>();
const { cache } = require;

/** What was thrown, as text; never throws itself. */
export function failureOf(thrown: any): Failure {
  try {
    const isError = typeof thrown === "object" && thrown !== null && "message" in thrown;
    const name = isError ? String(thrown.name ?? "Error") : "";
    const message = isError ? `${name}: ${String(thrown.message)}` : `threw ${Bun.inspect(thrown)}`;
    const stack = isError && typeof thrown.stack === "string" ? ownFrames(thrown.stack) : null;
    return { message: message.slice(0, MAX_TEXT), stack };
  } catch {
    return { message: "threw a value that cannot be shown", stack: null };
  }
}

// Which of the runner's own functions called the script helps nobody.
function ownFrames(stack: string): string {
  const lines = stack.split("\n");
  const first = lines.findIndex((line) => line.includes(import.meta.dir));
  return (first < 0 ? lines : lines.slice(0, first)).join("\n").slice(0, MAX_TEXT);
}

/** Loads the wanted hooks; unchanged files come from the module cache, those in `drop` leave it. */
export async function loadHooks(generation: number, wanted: Wanted[], drop: string[]): Promise<HookSet> {
  const hooks: Hook[] = [];
  for (const [index, [path, id, name, created_at, timeout, count, last, asks, lingers]] of wanted.entries()) {
    const hook: Hook = { call: null, failure: null, facts: facts(id, name, created_at, count, last), timeout, asks, lingers };
    if (path !== null) lives(generation, index, path);
    running(-1, index, generation);
    try {
      if (path === null) throw new Error("it killed its worker while loading");
      if (!loaded.has(path)) loaded.set(path, await load(path));
      const call = loaded.get(path);
      if (typeof call === "function") hook.call = call as (ctx: unknown) => unknown;
      else hook.failure = { message: "does not load: it has no default export that is a function", stack: null };
    } catch (thrown) {
      const failure = failureOf(thrown);
      hook.failure = { message: `does not load: ${failure.message}`, stack: failure.stack };
    }
    hooks.push(hook);
  }
  idle();
  for (const path of drop) {
    end(path);
    loaded.delete(path);
    delete cache[path];
  }
  return { generation, hooks };
}

// The default export of the file at `path`, and of no other that a script has put in its place.
async function load(path: string): Promise<unknown> {
  provideSqlite();
  delete cache[path];
  const module = await Promise.race([import(path), tooLong()]);
  return module.default;
}

function tooLong(): Promise<never> {
  return new Promise((_, reject) => setTimer(() => reject(new Error(`it took more than ${MAX_LOAD_MS} ms`)), MAX_LOAD_MS).unref());
}

/** Puts new counters into `set`: `[index, trigger_count, last_triggered | null]` each. */
export function count(set: HookSet, changes: [number, number, number | null][]): void {
  for (const [index, trigger_count, last] of changes) {
    const hook = set.hooks[index];
    if (hook !== undefined) hook.facts = facts(hook.facts.id, hook.facts.name, hook.facts.created_at, trigger_count, last);
  }
}

function facts(id: string, name: string, created_at: number, trigger_count: number, last: number | null): Readonly<Facts> {
  return freeze({ id, name, created_at, trigger_count, last_triggered: last ?? undefined });
}
