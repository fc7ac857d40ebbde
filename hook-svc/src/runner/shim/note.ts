// The note to the host, in a file that both map or read: who is running now. It survives SIGKILL, so after a death
// the host knows whom to blame, and a counter that stands still tells it that a script loops.
//
// i32 cells: 0 slot of the event, 1 index of the running hook + 1 (0 = nobody), 2 steps taken, 3 generation of the
// hook set.

const cells = (() => {
  const path = process.argv.find((a) => a.startsWith("note="))!.slice("note=".length);
  const bytes = Bun.mmap(path, { shared: true });
  return new Int32Array(bytes.buffer, bytes.byteOffset, 4);
})();

/** Hook `index` of `generation` starts on the event in `slot`. */
export function running(slot: number, index: number, generation: number): void {
  cells[0] = slot;
  cells[3] = generation;
  cells[1] = index + 1;
  cells[2] = (cells[2] + 1) | 0;
}

/** No script is running. */
export function idle(): void {
  cells[1] = 0;
  cells[2] = (cells[2] + 1) | 0;
}
