// `better-sqlite3` as far as hook scripts use it, over `bun:sqlite` (`docs/design/hooks.md` §1). Differences that
// matter to a script are evened out: no row is `undefined`, named parameters need no prefix, `pluck` and `raw`.

import * as sqlite from "bun:sqlite";
import { isModel, openModel } from "./query.ts";

const { Database: BunDatabase, SQLiteError } = sqlite;

type Options = { readonly?: boolean; fileMustExist?: boolean; timeout?: number };

class Statement {
  #inner: any;
  #shape: "row" | "pluck" | "raw" = "row";
  #bound: unknown[] | null = null;
  readonly source: string;
  readonly database: Database;

  constructor(database: Database, inner: any, source: string) {
    this.database = database;
    this.#inner = inner;
    this.source = source;
  }

  get reader(): boolean { return this.#inner.columnNames.length > 0; }
  pluck(on = true): this { this.#shape = on ? "pluck" : "row"; return this; }
  raw(on = true): this { this.#shape = on ? "raw" : "row"; return this; }
  bind(...params: unknown[]): this { this.#bound = params; return this; }
  columns(): { name: string }[] { return this.#inner.columnNames.map((name: string) => ({ name })); }

  get(...params: unknown[]): unknown {
    if (this.#shape !== "row") return this.#lists(params)[0];
    return this.#inner.get(...this.#params(params)) ?? undefined;
  }

  all(...params: unknown[]): unknown[] {
    return this.#shape === "row" ? this.#inner.all(...this.#params(params)) : this.#lists(params);
  }

  *iterate(...params: unknown[]): IterableIterator<unknown> {
    if (this.#shape === "row") yield* this.#inner.iterate(...this.#params(params));
    else yield* this.#lists(params);
  }

  run(...params: unknown[]): { changes: number; lastInsertRowid: number | bigint } {
    const { changes, lastInsertRowid } = this.#inner.run(...this.#params(params));
    return { changes, lastInsertRowid };
  }

  // better-sqlite3 takes positional values loose or in arrays, and named ones as an object.
  #params(params: unknown[]): unknown[] {
    const given = params.length > 0 ? params : (this.#bound ?? []);
    return given.flatMap((value) => (Array.isArray(value) ? value : [value]));
  }

  // By place, not by name: two columns may have one name.
  #lists(params: unknown[]): unknown[] {
    const rows: unknown[][] = this.#inner.values(...this.#params(params)) ?? [];
    return this.#shape === "pluck" ? rows.map((row) => row[0]) : rows;
  }
}

class Database {
  #inner: any;
  // What is not finalised keeps the file open beyond close().
  #prepared: WeakRef<any>[] = [];
  #sweepAt = 64;
  static readonly SqliteError = SQLiteError;
  readonly name: string;
  readonly readonly: boolean;
  open = true;

  constructor(name = ":memory:", options: Options = {}) {
    const readonly = options.readonly === true;
    this.name = name;
    this.readonly = readonly;
    if (isModel(name)) {
      this.#inner = openModel();
      return;
    }
    this.#inner = new BunDatabase(name, {
      readonly,
      readwrite: !readonly,
      create: !readonly && options.fileMustExist !== true,
      strict: true,
    });
    this.#inner.exec(`PRAGMA busy_timeout = ${Number(options.timeout ?? 5000)}`);
  }

  get memory(): boolean { return this.name === ":memory:" || this.name === ""; }
  get inTransaction(): boolean { return this.#inner.inTransaction; }

  prepare(sql: string): Statement {
    const inner = this.#inner.prepare(sql);
    if (this.#prepared.length >= this.#sweepAt) {
      this.#prepared = this.#prepared.filter((statement) => statement.deref() !== undefined);
      this.#sweepAt = Math.max(64, 2 * this.#prepared.length);
    }
    this.#prepared.push(new WeakRef(inner));
    return new Statement(this, inner, sql);
  }

  exec(sql: string): this { this.#inner.exec(sql); return this; }
  transaction<F extends (...args: any[]) => unknown>(body: F): F { return this.#inner.transaction(body) as unknown as F; }

  pragma(text: string, options: { simple?: boolean } = {}): unknown {
    const rows = this.prepare(`PRAGMA ${text}`).all() as object[];
    if (options.simple !== true) return rows;
    return rows.length > 0 ? Object.values(rows[0])[0] : undefined;
  }

  close(): this {
    if (this.open) {
      for (const statement of this.#prepared) statement.deref()?.finalize();
      this.#prepared = [];
      this.#inner.close();
    }
    this.open = false;
    return this;
  }
}

// The package is a constructor called with or without `new`, whichever way it is imported.
const callable = new Proxy(Database, { apply: (target, _self, args) => new target(...args) });

// `bun:sqlite`, but for the read model's name: whatever it is called by, that one is asked of the host.
const open = (name?: any, options?: any) => (isModel(name) ? openModel(options) : new BunDatabase(name, options));
const OwnDatabase: any = new Proxy(BunDatabase, {
  construct: (target, args, self) => (isModel(args[0]) ? openModel(args[1]) : Reflect.construct(target, args, self)),
  get: (target, key) => (key === "open" ? open : Reflect.get(target, key)),
});

const ours = { default: callable, Database: callable, SqliteError: SQLiteError };
// Named one by one: with the namespace's `__esModule`, `require` would answer the default alone.
const { Statement: BunStatement, constants } = sqlite as any;
const bun = { default: OwnDatabase, Database: OwnDatabase, Statement: BunStatement, SQLiteError, constants };
const addPlugin = Bun.plugin;
const removePlugins = Bun.plugin.clearAll;

/** Gives `better-sqlite3` and `bun:sqlite` to whatever is loaded next, and takes away what scripts have put in the way of modules. */
export function provideSqlite(): void {
  removePlugins();
  addPlugin({
    name: "better-sqlite3 on bun:sqlite",
    setup(build) {
      build.module("better-sqlite3", () => ({ exports: ours, loader: "object" }));
      build.module("nexus:sqlite", () => ({ exports: bun, loader: "object" }));
      build.onResolve({ filter: /^sqlite$/, namespace: "bun" }, () => ({ path: "nexus:sqlite" }));
    },
  });
}
