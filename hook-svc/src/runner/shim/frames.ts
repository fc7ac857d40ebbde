// Frames to and from the host: u32 little endian length, then JSON. Read from stdin, written to stdout; nothing
// else may write to stdout, so scripts' `console` and `process.stdout` go to stderr.

import fs from "node:fs";

const { stringify, parse } = JSON;
const HEADER_BYTES = 4;
const STDOUT = 1;
const STDERR = 2;
// What one call of `console.log` may put into the host's log, in characters.
const MAX_LINE = 2000;

const writeSync = fs.writeSync;
let buffer = Buffer.allocUnsafe(1 << 16);

/** Writes one frame and returns when the pipe holds it: what was sent survives the death of this process. */
export function send(message: unknown): void {
  const text = stringify(message);
  const most = HEADER_BYTES + text.length * 3;
  if (buffer.length < most) buffer = Buffer.allocUnsafe(most);
  const length = buffer.write(text, HEADER_BYTES, "utf8");
  buffer.writeUInt32LE(length, 0);
  writeAll(STDOUT, buffer, HEADER_BYTES + length);
}

function writeAll(fd: number, bytes: Uint8Array, end: number): void {
  let at = 0;
  while (at < end) {
    try {
      at += writeSync(fd, bytes, at, end - at);
    } catch (error: any) {
      if (error?.code !== "EAGAIN") throw error;
    }
  }
}

/** Calls `handle` with every message on stdin, in order, and `end` where stdin ends or makes no sense. */
export function receive(handle: (message: any) => void, end: () => void): void {
  let rest: Buffer | null = null;
  process.stdin.on("data", (chunk: Buffer) => {
    const bytes = rest === null ? chunk : Buffer.concat([rest, chunk]);
    let at = 0;
    while (bytes.length - at >= HEADER_BYTES) {
      const length = bytes.readUInt32LE(at);
      if (bytes.length - at - HEADER_BYTES < length) break;
      at += HEADER_BYTES + length;
      let message: unknown;
      try {
        message = parse(bytes.toString("utf8", at - length, at));
      } catch {
        // Answers to what was in this frame would never come: the host must see a death, not silence.
        return end();
      }
      handle(message);
    }
    rest = at < bytes.length ? Buffer.from(bytes.subarray(at)) : null;
  });
  process.stdin.on("end", end);
}

/** Sends whatever scripts print to stderr, which the host logs. */
export function divertOutput(): void {
  const print = (...values: unknown[]) => {
    const line = values.map((v) => (typeof v === "string" ? v : Bun.inspect(v))).join(" ").slice(0, MAX_LINE) + "\n";
    const bytes = Buffer.from(line);
    writeAll(STDERR, bytes, bytes.length);
  };
  for (const name of ["log", "info", "warn", "error", "debug", "trace", "dir", "table"]) (console as any)[name] = print;
  (process.stdout as any).write = (chunk: unknown) => { print(String(chunk)); return true; };
}
