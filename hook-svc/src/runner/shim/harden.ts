// What all scripts of a process share is frozen before the first of them is loaded: a script that changes a built-in
// gets a TypeError, and its neighbours see nothing.
//
// Freezing a prototype's property forbids plain assignment to objects below it as well (`error.name = "…"`). The
// properties that programs do assign are therefore made accessors whose setter gives the object one of its own.

const { freeze, getOwnPropertyDescriptors, getPrototypeOf, defineProperty } = Object;
const { ownKeys } = Reflect;

const NAMES = [
  "Object", "Function", "Array", "String", "Number", "Boolean", "Symbol", "BigInt", "Math", "JSON", "Promise", "RegExp", "Date",
  "Map", "Set", "WeakMap", "WeakSet", "WeakRef", "Error", "TypeError", "RangeError", "SyntaxError", "EvalError", "ReferenceError",
  "URIError", "AggregateError", "ArrayBuffer", "SharedArrayBuffer", "DataView", "Uint8Array", "Int8Array", "Uint16Array",
  "Int16Array", "Uint32Array", "Int32Array", "Float32Array", "Float64Array", "BigInt64Array", "BigUint64Array",
  "Uint8ClampedArray", "Reflect", "Proxy", "Atomics", "Intl", "parseInt", "parseFloat", "isNaN", "isFinite", "URL",
  "URLSearchParams", "TextEncoder", "TextDecoder", "structuredClone", "queueMicrotask", "performance", "setTimeout", "setInterval",
  "setImmediate", "clearTimeout", "clearInterval", "clearImmediate", "fetch", "Buffer",
];
const ERRORS = ["Error", "TypeError", "RangeError", "SyntaxError", "EvalError", "ReferenceError", "URIError", "AggregateError"];
const OVERRIDDEN = ["constructor", "name", "message", "toString", "toLocaleString", "valueOf", "hasOwnProperty", "toJSON", "then"];

/** Freezes the built-ins, and takes away the means to compute where the host does not look: threads. */
export function harden(): void {
  const global = globalThis as any;
  // What the launcher tells Bun is no script's business.
  for (const name of Object.keys(process.env)) delete process.env[name];
  const noThreads = function Worker() { throw new Error("threads are not allowed in a hook"); };
  for (const holder of [global, require("node:worker_threads")]) defineProperty(holder, "Worker", { value: noThreads, writable: false, configurable: false });
  const prototypes = [Object.prototype, Function.prototype, Promise.prototype, Date.prototype, ...ERRORS.map((name) => global[name].prototype)];
  for (const prototype of prototypes) for (const key of OVERRIDDEN) allowOwn(prototype, key);
  const seen = new Set<any>();
  for (const name of NAMES) walk(global[name], seen);
  for (const sample of [async () => {}, function* () {}, async function* () {}, [][Symbol.iterator](), new Map()[Symbol.iterator](), new Set()[Symbol.iterator](), ""[Symbol.iterator](), Object.getPrototypeOf(Int8Array)]) {
    walk(typeof sample === "function" ? sample : getPrototypeOf(sample), seen);
    walk(getPrototypeOf(sample), seen);
  }
  for (const value of seen) {
    try {
      freeze(value);
    } catch {
      // Typed arrays with elements and a few host objects cannot be frozen; they are nobody's prototype.
    }
  }
  for (const name of NAMES) if (name in global) defineProperty(global, name, { value: global[name], writable: false, configurable: false });
}

function allowOwn(prototype: any, key: string): void {
  const known = Object.getOwnPropertyDescriptor(prototype, key);
  if (known === undefined || !("value" in known) || known.configurable !== true) return;
  const { value, enumerable } = known;
  defineProperty(prototype, key, {
    get() { return value; },
    set(own: unknown) {
      if (this === prototype) throw new TypeError(`${key} of a built-in cannot be changed by a hook`);
      defineProperty(this, key, { value: own, writable: true, enumerable: true, configurable: true });
    },
    enumerable,
    configurable: false,
  });
}

function walk(value: any, seen: Set<any>): void {
  const pending = [value];
  while (pending.length > 0) {
    const next = pending.pop();
    if ((typeof next !== "object" && typeof next !== "function") || next === null || seen.has(next) || next === globalThis) continue;
    seen.add(next);
    const described: any = getOwnPropertyDescriptors(next);
    for (const key of ownKeys(described)) {
      const property = described[key];
      pending.push(property.value, property.get, property.set);
    }
    pending.push(getPrototypeOf(next));
  }
}
