// The read model (`ctx.dbPath`) as `bun:sqlite` would show it. No process of hooks has the file: a query is a frame to the
// host, which answers with a page of rows on a pipe of its own. The script stands still until the page is there.

import { SQLiteError } from "bun:sqlite";
import fs from "node:fs";
import { send } from "./frames.ts";
import { slotNow, slotRunning } from "./note.ts";

type Page = { columns: string[]; rows: unknown[][]; more: boolean };
type Query = { sql: string; values: unknown[]; named: Record<string, unknown>; skip: number; most: number | null; exact: boolean };

const { parse } = JSON;
const { freeze, setPrototypeOf, fromEntries, create, assign } = Object;
const { isSafeInteger } = Number;
const { isArray } = Array;
const readSync = fs.readSync;
const toBuffer = Buffer.from;
const allocate = Buffer.allocUnsafe;

const argument = (name: string) => process.argv.find((a) => a.startsWith(`${name}=`))!.slice(name.length + 1);
const answers = Number(argument("answers"));
/** What `ctx.dbPath` is. */
export const dbPath = argument("db");

const header = allocate(4);

function fill(bytes: Buffer): void {
  let at = 0;
  while (at < bytes.length) {
    const read = readSync(answers, bytes, at, bytes.length - at, null);
    if (read === 0) throw fault("SQLITE_CANTOPEN", "the host has gone");
    at += read;
  }
}

// `opened`: the event on which its database was opened. After an `await` nobody can tell for sure which event is running.
function ask(query: Query, opened: number): Page {
  send({ t: "query", q: { slot: slotNow(), opened, query } });
  fill(header);
  const body = allocate(header.readUInt32LE(0));
  fill(body);
  const { page, error } = parse(body.toString("utf8"));
  if (error !== undefined) throw fault(error[0], error[1]);
  return page;
}

function fault(code: string, message: string): Error {
  const error: any = setPrototypeOf(new Error(message), SQLiteError.prototype);
  error.code = code;
  error.name = "SQLiteError";
  return error;
}

const refuse = (what: string) => { throw fault("SQLITE_READONLY", `only a single SELECT statement is allowed on the read model: ${what} is not allowed`); };

function encode(value: any): unknown {
  if (value === undefined || value === null) return null;
  if (typeof value === "bigint") return { i: `${value}` };
  if (typeof value === "number") return isSafeInteger(value) || value !== value || value - value === 0 ? value : fail(value);
  if (typeof value === "string" || typeof value === "boolean") return value;
  if (ArrayBuffer.isView(value)) return { b: toBuffer(value.buffer as ArrayBuffer, value.byteOffset, value.byteLength).toString("base64") };
  return fail(value);
}

function fail(value: unknown): never {
  throw new TypeError(`Binding expected string, TypedArray, boolean, number, bigint or null: got ${Bun.inspect(value).slice(0, 100)}`);
}

function decode(value: any, exact: boolean): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (value.i !== undefined) return exact ? BigInt(value.i) : Number(value.i);
  if (value.r !== undefined) return Number(value.r);
  return new Uint8Array(toBuffer(value.b, "base64"));
}

class ModelStatement {
  #sql: string;
  #exact: boolean;
  #opened: number;
  #type: any = null;
  #described: { columns: string[] } | null = null;

  constructor(sql: string, exact: boolean, opened: number) {
    this.#sql = sql;
    this.#exact = exact;
    this.#opened = opened;
  }

  #query(params: any[], skip: number, most: number | null): Query {
    const query: Query = { sql: this.#sql, values: [], named: {}, skip, most, exact: this.#exact };
    for (const param of params) {
      if (isArray(param)) query.values.push(...param.map(encode));
      else if (typeof param === "object" && param !== null && !ArrayBuffer.isView(param)) {
        for (const name of Object.keys(param)) query.named[name] = encode(param[name]);
      } else query.values.push(encode(param));
    }
    return query;
  }

  *#rows(params: any[], most: number | null): IterableIterator<unknown[]> {
    const query = this.#query(params, 0, most);
    for (;;) {
      const page = ask(query, this.#opened);
      this.#described = page;
      for (const row of page.rows) yield row.map((value) => decode(value, this.#exact));
      if (!page.more) return;
      query.skip += page.rows.length;
    }
  }

  #shown(row: unknown[]): unknown {
    const shown = fromEntries(this.columnNames.map((name, at) => [name, row[at]]));
    return this.#type === null ? shown : assign(create(this.#type.prototype), shown);
  }

  get columnNames(): string[] { return (this.#described ??= ask(this.#query([], 0, 0), this.#opened)).columns; }
  get native(): null { return null; }
  get readonly(): boolean { return true; }
  get reader(): boolean { return this.columnNames.length > 0; }
  get isFinalized(): boolean { return false; }

  get(...params: unknown[]): unknown {
    for (const row of this.#rows(params, 1)) return this.#shown(row);
    return null;
  }

  all(...params: unknown[]): unknown[] { return [...this.#rows(params, null)].map((row) => this.#shown(row)); }
  values(...params: unknown[]): unknown[][] { return [...this.#rows(params, null)]; }
  *iterate(...params: unknown[]): IterableIterator<unknown> { for (const row of this.#rows(params, null)) yield this.#shown(row); }
  [Symbol.iterator](): IterableIterator<unknown> { return this.iterate(); }
  run(...params: unknown[]): { changes: number; lastInsertRowid: number } {
    for (const _ of this.#rows(params, 1)) break;
    return { changes: 0, lastInsertRowid: 0 };
  }

  as(type: unknown): this { this.#type = type; return this; }
  safeIntegers(on = true): this { this.#exact = on; return this; }
  finalize(): void {}
  toString(): string { return this.#sql; }
  toJSON(): unknown { return { sql: this.#sql }; }
  [Symbol.dispose](): void {}
}

class ModelDatabase {
  readonly filename = dbPath;
  #exact: boolean;
  #isOpen = true;
  #opened = slotRunning();

  constructor(options?: any) {
    this.#exact = options?.safeIntegers === true;
  }

  get inTransaction(): boolean { return false; }
  get handle(): number { return -1; }

  prepare(sql: string): ModelStatement {
    if (!this.#isOpen) throw new RangeError("Cannot use a closed database");
    return new ModelStatement(`${sql}`, this.#exact, this.#opened);
  }

  query(sql: string): ModelStatement { return this.prepare(sql); }
  run(sql: string, ...params: unknown[]): unknown { return this.prepare(sql).run(...params); }
  exec(sql: string, ...params: unknown[]): unknown { return this.run(sql, ...params); }
  // Each evaluation reads in one transaction as it is.
  transaction(body: Function): Function {
    const run: any = (...args: unknown[]) => body(...args);
    run.deferred = run.immediate = run.exclusive = run;
    return run;
  }

  close(): void { this.#isOpen = false; }
  clearQueryCache(): void {}
  loadExtension(): never { return refuse("an extension"); }
  function(): never { return refuse("a function of one's own"); }
  aggregate(): never { return refuse("a function of one's own"); }
  serialize(): never { return refuse("a copy of the file"); }
  fileControl(): never { return refuse("fileControl"); }
  [Symbol.dispose](): void { this.close(); }
}

for (const one of [ModelStatement, ModelDatabase]) {
  freeze(one.prototype);
  freeze(one);
}

/** Whether `name` is that of the read model. */
export function isModel(name: unknown): boolean {
  return typeof name === "string" && name.trim() === dbPath;
}

/** The read model, as `bun:sqlite` opens a database. */
export function openModel(options?: unknown): any {
  return new ModelDatabase(options);
}
