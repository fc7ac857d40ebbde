// What the page keeps in localStorage. Without storage (a private window) a reload forgets; the open page works.

const CARDS = "nexus.cards";
const MAX_CARDS = 32;

/** What is kept under `name`; null where nothing is. */
export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keeps `text` under `name`; null keeps nothing there. */
export function keep(name, text) {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
  } catch {
    // The open page knows it all the same.
  }
}

/** Everything kept under names that begin with `prefix`: the rest of the name, and what JSON it is. */
export function all(prefix) {
  const found = [];
  try {
    for (const name of Object.keys(localStorage)) {
      if (name.startsWith(prefix)) found.push([name.slice(prefix.length), JSON.parse(localStorage.getItem(name))]);
    }
  } catch {
    // What cannot be read is not recalled.
  }
  return found;
}

/** The cards that this page was shown, by the id of their line, so that a reload still has their buttons. */
export function cards() {
  try {
    return new Map(JSON.parse(recall(CARDS)) ?? []);
  } catch {
    return new Map();
  }
}

/** Keeps the newest of them. */
export function keepCards(shown) {
  keep(CARDS, JSON.stringify([...shown].slice(-MAX_CARDS)));
}
