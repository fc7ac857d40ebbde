// What the page keeps in the browser's storage. Without storage (a private window) a reload forgets; the open page works.

const CARDS = "nexus.cards";
const MAX_CARDS = 32;
const THREADS = "nexus.threads";
const MAX_THREADS = 200;
const THREAD = "nexus.thread";
const DRAFT = "nexus.draft.";

/** What is kept under `name`; null if nothing is. */
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

/** Everything kept under names that begin with `prefix`: the rest of the name, and the JSON of it. */
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

function parsed(name) {
  try {
    return JSON.parse(recall(name)) ?? [];
  } catch {
    return [];
  }
}

/** The cards that this page was shown, by the id of their line, so that a reload still has their buttons. */
export function cards() {
  return new Map(parsed(CARDS));
}

/** Keeps the newest of them. */
export function keepCards(shown) {
  keep(CARDS, JSON.stringify([...shown].slice(-MAX_CARDS)));
}

/** The list of conversations as it was shown last: `thread`, `title`, `at`, `isUnread`. */
export const threads = () => parsed(THREADS);

/** Keeps the newest entries of the list. */
export function keepThreads(conversations) {
  const entries = conversations.map(({ thread, title, at, isUnread }) => ({ thread, title, at, isUnread }));
  keep(THREADS, JSON.stringify(entries.sort((a, b) => b.at - a.at).slice(0, MAX_THREADS)));
}

// Each tab keeps its own conversation open; a new tab begins with the one that was opened last.
function here(name, text) {
  try {
    if (text === undefined) return sessionStorage.getItem(name);
    if (text === "" && name !== THREAD) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, text);
  } catch {
    // The open page knows it all the same.
  }
  return null;
}

/** The thread of the conversation that is open; null for the visitor's first one. */
export const openThread = () => (here(THREAD) ?? recall(THREAD)) || null;

export function keepOpenThread(thread) {
  here(THREAD, thread ?? "");
  keep(THREAD, thread);
}

/** What was typed in a conversation and not sent. */
export const draft = (thread) => here(DRAFT + (thread ?? "")) ?? "";

export function keepDraft(thread, text) {
  here(DRAFT + (thread ?? ""), text);
}
