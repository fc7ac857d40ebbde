// The note to the host, in a file that both map or read: who is running now, and what was answered and not yet sent.
// It survives SIGKILL, so after a death the host knows whom to blame and what not to ask again, and a counter that
// stands still tells it that a script loops.
//
// i32 cells: 0 slot of the event, 1 index of the running hook + 1 (0 = nobody), 2 steps taken, 3 generation of the
// hook set, 4 cells of the journal in use; from 8 on the journal, an entry for each hook: slot, index, kind,
// microseconds, bytes of text, the text.

import { drainMicrotasks } from "bun:jsc";
import { isOver, lifeOf } from "./lives.ts";

export const PASSED = 1;
export const RESULT = 2;
export const FAILED = 3;

const JOURNAL = 8;
const HEAD = 5;

const bytes = Bun.mmap(process.argv.find((a) => a.startsWith("note="))!.slice("note=".length), { shared: true });
const cells = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 2);
const encoder = new TextEncoder();

/** Hook `index` of `generation` starts on the event in `slot`. */
export function running(slot: number, index: number, generation: number): void {
  name(slot, index + 1, generation);
}

/** The slot of the event on which a hook is running, as far as is known. */
export function slotNow(): number {
  return cells[0];
}

/** The slot of the event on which a hook is running; -1 if none is. */
export function slotRunning(): number {
  return cells[1] === 0 ? -1 : cells[0];
}

/** Hook `index` has answered the event in `slot`. What does not fit is left out: it would run again. */
export function noted(slot: number, index: number, kind: number, us: number, text: string | null): void {
  const at = JOURNAL + cells[4];
  let length = 0;
  if (text === null) {
    if (at + HEAD > cells.length) return;
  } else {
    if (at + HEAD + ((text.length * 3 + 3) >> 2) > cells.length) return;
    length = encoder.encodeInto(text, bytes.subarray((at + HEAD) * 4)).written;
  }
  cells[at] = slot;
  cells[at + 1] = index;
  cells[at + 2] = kind;
  cells[at + 3] = us;
  cells[at + 4] = length;
  cells[4] = at - JOURNAL + HEAD + ((length + 3) >> 2);
}

/** What was noted has been sent. */
export function forget(): void {
  cells[4] = 0;
}

/** No script is running. */
export function idle(): void {
  cells[1] = 0;
  cells[2] = (cells[2] + 1) | 0;
}

let stray: (thrown: unknown, by: [number, number] | null) => void = () => {};

/** `tell` gets what is thrown in somebody's name where nobody would catch it: hook index and generation. */
export function onStray(tell: (thrown: unknown, by: [number, number] | null) => void): void {
  stray = tell;
}

/** `act`, to be called later in the name of whoever is running now, as long as that hook is in the set, else `over`;
 *  `isTurn`: nothing else runs meanwhile, so that what it resolves goes on in that name too. */
export function inItsName(act: Function, isTurn: boolean, over: () => void = () => {}): (...args: unknown[]) => unknown {
  const slot = cells[0];
  const who = cells[1];
  const generation = cells[3];
  if (who === 0) return act as (...args: unknown[]) => unknown;
  const life = lifeOf(generation, who - 1);
  return function (this: unknown, ...args: unknown[]) {
    if (life !== undefined && isOver(life)) return over();
    const formerSlot = cells[0];
    const former = cells[1];
    const formerGeneration = cells[3];
    name(slot, who, generation);
    try {
      return act.apply(this, args);
    } catch (thrown) {
      stray(thrown, [who - 1, generation]);
    } finally {
      if (isTurn) drainMicrotasks();
      name(formerSlot, former, formerGeneration);
    }
  };
}

function name(slot: number, who: number, generation: number): void {
  cells[0] = slot;
  cells[3] = generation;
  cells[1] = who;
  cells[2] = (cells[2] + 1) | 0;
}
