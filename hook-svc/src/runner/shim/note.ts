// The note to the host, in a file that both map or read: who is running now. It survives SIGKILL, so after a death
// the host knows whom to blame, and a counter that stands still tells it that a script loops.
//
// i32 cells: 0 slot of the event, 1 index of the running hook + 1 (0 = nobody), 2 steps taken, 3 generation of the
// hook set.

import { drainMicrotasks } from "bun:jsc";

const cells = (() => {
  const path = process.argv.find((a) => a.startsWith("note="))!.slice("note=".length);
  const bytes = Bun.mmap(path, { shared: true });
  return new Int32Array(bytes.buffer, bytes.byteOffset, 4);
})();

/** Hook `index` of `generation` starts on the event in `slot`. */
export function running(slot: number, index: number, generation: number): void {
  name(slot, index + 1, generation);
}

/** No script is running. */
export function idle(): void {
  cells[1] = 0;
  cells[2] = (cells[2] + 1) | 0;
}

/** `act`, to be called later in the name of whoever is running now; `isTurn`: nothing else runs meanwhile, so that
 *  what it resolves goes on in that name too. */
export function inItsName(act: Function, isTurn: boolean): (...args: unknown[]) => unknown {
  const slot = cells[0];
  const who = cells[1];
  const generation = cells[3];
  if (who === 0) return act as (...args: unknown[]) => unknown;
  return function (this: unknown, ...args: unknown[]) {
    const formerSlot = cells[0];
    const former = cells[1];
    const formerGeneration = cells[3];
    name(slot, who, generation);
    try {
      return act.apply(this, args);
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
