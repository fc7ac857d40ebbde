// How long a hook's code may go on: what it left to run later (timers, sleeps) ends when its file has left the set, because
// it was deleted, switched off or replaced, and what was under way in it is over.

export type Life = { left: boolean; open: number };

// Sets whose hooks may still be named by something that was left to run.
const FORMER = 64;

const byPath = new Map<string, Life>();
const byIndex = new Map<number, Life[]>();

/** Hook `index` of `generation` is the file at `path`, which may have lived in sets before. */
export function lives(generation: number, index: number, path: string): void {
  let life = byPath.get(path);
  if (life === undefined) byPath.set(path, (life = { left: false, open: 0 }));
  let all = byIndex.get(generation);
  if (all === undefined) {
    byIndex.set(generation, (all = []));
    byIndex.delete(generation - FORMER);
  }
  all[index] = life;
}

/** The file at `path` has left the set. */
export function end(path: string): void {
  const life = byPath.get(path);
  if (life !== undefined) life.left = true;
  byPath.delete(path);
}

/** Whether nothing of it is to run any more. */
export function isOver(life: Life): boolean {
  return life.left && life.open === 0;
}

/** The life of hook `index` of `generation`, where that is known. */
export function lifeOf(generation: number, index: number): Life | undefined {
  return byIndex.get(generation)?.[index];
}
