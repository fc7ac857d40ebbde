// What all scripts of a process share is frozen before the first of them is loaded: a script that changes a built-in gets
// a TypeError, and its neighbours see nothing. That is everything which can be reached from the global object, from `Bun`
// and from the modules that hooks have a use for; what else a module could be loaded for leads out of the process, where
// the sandbox refuses it.
//
// Freezing a prototype's property forbids plain assignment to objects below it as well (`error.name = "…"`,
// `this._events = …`). The properties that programs do assign are therefore made accessors whose setter gives the object
// one of its own.

import { createRequire } from "node:module";

const { freeze, getOwnPropertyDescriptor, getOwnPropertyDescriptors, getPrototypeOf, defineProperty } = Object;
const { ownKeys } = Reflect;
const required = createRequire(import.meta.url);

const MODULES = [
  "assert", "async_hooks", "buffer", "bun:sqlite", "console", "crypto", "events", "fs", "fs/promises", "module", "os", "path", "path/posix",
  "path/win32", "perf_hooks", "querystring", "readline", "stream", "stream/promises", "string_decoder", "timers", "timers/promises", "url",
  "util", "util/types", "zlib", "better-sqlite3",
];
// What would take a script past all of it: foreign code in the process, its modules under others' names, its clock.
const REMOVED: [string, string[]][] = [
  ["bun:ffi", ["dlopen", "linkSymbols", "CFunction", "JSCallback", "cc", "ptr", "read", "toBuffer", "toArrayBuffer", "viewSource", "native", "CString"]],
  ["bun:jsc", ["setTimeZone", "startRemoteDebugger", "setRandomSeed", "startSamplingProfiler", "profile", "callerSourceOrigin", "setTimeout"]],
  ["worker_threads", ["Worker"]],
];
// Prototypes whose methods are called all the time and belong to values, not to objects that programs adorn.
const LANGUAGE = [
  "Object", "Function", "Array", "String", "Number", "Boolean", "Symbol", "BigInt", "Promise", "RegExp", "Date", "Map", "Set", "WeakMap",
  "WeakSet", "ArrayBuffer", "DataView", "Uint8Array", "Iterator",
];
const OVERRIDDEN = ["constructor", "name", "message", "toString", "toLocaleString", "valueOf", "hasOwnProperty", "toJSON", "then"];

/** Freezes the built-ins, and takes away the means to compute where the host does not look. */
export function harden(): void {
  const global = globalThis as any;
  // What the launcher tells Bun is no script's business.
  for (const name of Object.keys(process.env)) delete process.env[name];
  defineProperty(process, "env", { value: freeze(Object.create(null)), writable: false, configurable: false });

  ownZone = { set: required("bun:jsc").setTimeZone, name: Intl.DateTimeFormat().resolvedOptions().timeZone, offsets: offsets() };
  for (const [module, names] of REMOVED) for (const name of names) remove(required(module), name, `${name} of ${module}`);
  const { mock } = required("bun:test");
  remove(mock, "module", "mock.module");
  for (const name of ownKeys(Bun.FFI ?? {})) remove(Bun.FFI, name as string, `Bun.FFI.${String(name)}`);
  remove(global, "Worker", "Worker");

  const names = Object.getOwnPropertyNames(global).filter((name) => name !== "process");
  const reached = walk([...names.map((name) => valueOf(global, name)), ...MODULES.map((name) => required(name)), mock, ...unnamed()]);
  const language = new Set(LANGUAGE.map((name) => global[name].prototype));
  for (const value of reached) if (isPrototype(value)) letOwn(value, language.has(value) ? isOverridden : () => true);
  for (const value of reached) {
    try {
      freeze(value);
    } catch {
      // Typed arrays with elements and a few host objects cannot be frozen; they are nobody's prototype.
    }
  }
  for (const name of names) pin(global, name);
  for (const name of Object.getOwnPropertyNames(process)) if (typeof getOwnPropertyDescriptor(process, name)?.value === "function") pin(process, name);
}

// A winter's and a summer's day.
const DAYS = [1_768_000_000_000, 1_784_000_000_000];
const offsets = () => DAYS.map((day) => new Date(day).getTimezoneOffset());
let ownZone: { set: (name: string) => void; name: string; offsets: number[] } | null = null;

/** Puts the process's time zone back: a variable that the engine keeps beside `process.env` moves it, and cannot be frozen. */
export function keepZone(): void {
  if (ownZone === null) return;
  const [winter, summer] = ownZone.offsets;
  if (new Date(DAYS[0]).getTimezoneOffset() !== winter || new Date(DAYS[1]).getTimezoneOffset() !== summer) ownZone.set(ownZone.name);
}

// Objects that have no name: prototypes of iterators, functions, statements.
function unnamed(): unknown[] {
  const { Database } = required("bun:sqlite");
  const memory = new Database(":memory:");
  const samples: any[] = [
    async () => {}, function* () {}, async function* () {}, (function* () {})(), (async function* () {})(), [][Symbol.iterator](),
    [].values().map((one) => one), Iterator.from({ next: () => ({ done: true, value: 0 }) } as any), new Map()[Symbol.iterator](),
    new Set()[Symbol.iterator](), ""[Symbol.iterator](), "".matchAll(/x/g), new URLSearchParams().entries(), new Headers().entries(),
    new FormData().entries(), new Int8Array(0), new Intl.Segmenter().segment(""), new Intl.Segmenter().segment("")[Symbol.iterator](),
    memory.prepare("select 1"), required("better-sqlite3").default(":memory:").prepare("select 1"),
  ];
  const found = samples.flatMap((sample) => (typeof sample === "function" ? [sample, getPrototypeOf(sample)] : [getPrototypeOf(sample)]));
  memory.close();
  return found;
}

function valueOf(holder: any, name: string): unknown {
  try {
    return holder[name];
  } catch {
    return undefined;
  }
}

function remove(holder: any, name: string, what: string): void {
  if (holder === undefined || !(name in holder)) return;
  const value = function () { throw new Error(`${what} is not allowed in a hook`); };
  defineProperty(holder, name, { value, writable: false, configurable: false });
}

// A property that nobody changes any more, whatever it holds.
function pin(holder: any, name: string): void {
  const known = getOwnPropertyDescriptor(holder, name);
  if (known === undefined || known.configurable === false && known.writable !== true) return;
  const change = "value" in known ? { writable: false, configurable: false } : { configurable: false };
  try {
    defineProperty(holder, name, change);
  } catch {
    // Where the engine keeps it as it is, a script cannot change it either.
  }
}

function isPrototype(value: any): boolean {
  const constructor = getOwnPropertyDescriptor(value, "constructor")?.value;
  return typeof constructor === "function" && typeof value !== "function";
}

const isOverridden = (name: string) => OVERRIDDEN.includes(name);

// What programs give objects of their own: whatever a prototype holds that is no method, and those methods.
function letOwn(prototype: any, isOwned: (name: string) => boolean): void {
  const described: any = getOwnPropertyDescriptors(prototype);
  for (const key of ownKeys(described) as string[]) {
    const known = described[key];
    if (!("value" in known) || known.configurable !== true) continue;
    if (typeof known.value === "function" && !isOwned(key)) continue;
    letOneOwn(prototype, key, known);
  }
}

function letOneOwn(prototype: any, key: string, { value, enumerable }: PropertyDescriptor): void {
  defineProperty(prototype, key, {
    get() { return value; },
    set(own: unknown) {
      if (this === prototype) throw new TypeError(`${String(key)} of a built-in cannot be changed by a hook`);
      defineProperty(this, key, { value: own, writable: true, enumerable: true, configurable: true });
    },
    enumerable,
    configurable: false,
  });
}

// All objects that can be reached from `roots`, but for the global object and the process, whose state the
// engine changes, and the cache of modules (`hooks.ts` trusts none of it).
function walk(roots: unknown[]): Set<any> {
  const seen = new Set<any>();
  const spared = new Set<any>([globalThis, process, required.cache]);
  const pending = [...roots];
  while (pending.length > 0) {
    const next: any = pending.pop();
    if ((typeof next !== "object" && typeof next !== "function") || next === null || seen.has(next) || spared.has(next)) continue;
    seen.add(next);
    const described: any = getOwnPropertyDescriptors(next);
    for (const key of ownKeys(described) as string[]) {
      const property = described[key];
      pending.push(property.value, property.get, property.set);
    }
    pending.push(getPrototypeOf(next));
  }
  return seen;
}
