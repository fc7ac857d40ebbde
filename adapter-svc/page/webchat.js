// The page's half of the conversation. A message stays in `waiting` (and in localStorage) until the server says that
// it is stored, and is sent again on every reconnect with the same id: the server makes one event of it.

import { addButtons, body, decide, element, follow, line, place } from "/webchat/lines.js";
import { all, cards, keep, keepCards, recall } from "/webchat/memory.js";

const FIRST_RETRY_MS = 300;
const MAX_RETRY_MS = 10_000;
const MAX_WAITING = 200;
const MAX_WATCHED = 16;
const WAITING = "nexus.waiting.";
// The server says every few seconds that a turn is still worked on, or its assistant still away; a server that is silent says nothing.
const HOLDS_MS = 20_000;

const log = document.querySelector("#log");
const form = document.querySelector("#form");
const input = document.querySelector("#message");
const status = document.querySelector("#status");
const problem = document.querySelector("#problem");
const absent = document.querySelector("#away");
const thinking = document.querySelector("#thinking");
const empty = document.querySelector("#empty");

// The key alone lets this page speak as its visitor; the visitor's id, which the server derives from it, is no secret.
const key = recall("nexus.key") ?? newId();
keep("nexus.key", key);
let visitor = recall("nexus.visitor");
let ownerLink = takeOwnerLink();
// Each waiting message has a name of its own, so that two open pages do not overwrite each other's.
const waiting = new Map(all(WAITING).sort(([, a], [, b]) => a.at - b.at));
const shown = new Map();
const partial = new Map();
const away = new Map();
const working = new Map();
const decidable = cards();
let account = "default";
let socket = null;
let retry = FIRST_RETRY_MS;
let caughtUp = false;

function newId() {
  // `randomUUID` exists on secure origins only; the page is also served over plain HTTP.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The link of the owner is used once; it must not stay in the address bar or the history.
function takeOwnerLink() {
  const link = /^#owner=([0-9A-Za-z]+)$/.exec(location.hash)?.[1];
  if (link) history.replaceState(null, "", location.pathname);
  return link;
}

function remember(id, message) {
  waiting.set(id, message);
  keep(WAITING + id, JSON.stringify(message));
}

function forget(id) {
  waiting.delete(id);
  keep(WAITING + id, null);
}

const turnOf = (id) => /^out:([^/]*)\//.exec(id)?.[1];
const eventId = (id) => `webchat:${account}/${visitor}/${id}`;

// `late`: it comes from the history, and what is shown already may be younger.
function show({ id, from, text, at, approval }, late = false) {
  const known = shown.get(id);
  if (known) return known;
  const card = approval ?? decidable.get(id);
  const made = line({ id, from, text, at: at || Date.now(), card });
  place(made, late, from === "visitor" && !late);
  shown.set(id, made);

  if (from === "visitor") return made;
  if (approval) {
    decidable.set(id, approval);
    keepCards(decidable);
  }
  if (!card) return made;
  addButtons(made, card, say);
  if (card.status) decide(made, card.status);
  follow();
  return made;
}

// Asks the server to say what becomes of the cards that wait.
function watch() {
  const open = [...decidable.values()].filter((card) => !card.status).slice(-MAX_WATCHED);
  const watched = open.map(({ approval, arguments_hash }) => ({ approval, arguments_hash }));
  if (watched.length && socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "watch", cards: watched }));
}

function say(text) {
  if (waiting.size >= MAX_WAITING) {
    complain("The server has not answered for a while; try again later.");
    return false;
  }
  const id = newId();
  const message = { text, at: Date.now() };
  remember(id, message);
  showWaiting(id, message);
  transmit(id, message);
  return true;
}

function showWaiting(id, { text, at }) {
  // Before the first answer of the server the visitor has no id; the history shows what waits.
  if (!visitor) return;
  show({ id: eventId(id), from: "visitor", text, at }).classList.add("waiting");
}

function transmit(id, { text }) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "message", id, text }));
}

function settle(id, failed) {
  forget(id);
  const line = shown.get(eventId(id));
  line?.classList.remove("waiting");
  line?.classList.toggle("failed", failed);
}

// Turns that are being worked on, and those whose assistant cannot be reached, each until it is said no more.
function set(turns, turn, holds) {
  clearTimeout(turns.get(turn));
  turns.delete(turn);
  if (holds) turns.set(turn, setTimeout(() => set(turns, turn, false), HOLDS_MS));
  absent.hidden = away.size === 0;
  thinking.hidden = working.size === 0 || !absent.hidden;
}

function dropPartial(turn) {
  partial.get(turn)?.line.remove();
  partial.delete(turn);
}

// Pieces may come faster than a screen is drawn.
function draw(piece) {
  if (piece.drawn) return;
  piece.drawn = requestAnimationFrame(() => {
    piece.drawn = 0;
    piece.line.replaceChildren(body(piece.text || "…", false));
    follow();
  });
}

function complain(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

const hear = {
  ready(word) {
    account = word.account;
    visitor = word.peer;
    keep("nexus.visitor", visitor);
    if (ownerLink) socket.send(JSON.stringify({ type: "claim", link: ownerLink }));
    caughtUp = false;
    retry = FIRST_RETRY_MS;
    setStatus("open", "connected");
    watch();
  },
  history(word) {
    for (const item of word.items) {
      if (item.from !== "visitor") dropPartial(turnOf(item.id));
      show(item, true);
    }
    if (caughtUp) return;
    caughtUp = true;
    for (const [id, message] of waiting) {
      showWaiting(id, message);
      transmit(id, message);
    }
  },
  owner() {
    ownerLink = null;
    complain("");
    setStatus("open", "connected as the owner");
  },
  stored(word) {
    settle(word.id, false);
    complain("");
  },
  part(item) {
    // The whole takes the place of the pieces that were shown while it was made.
    const turn = turnOf(item.id);
    dropPartial(turn);
    set(away, turn, false);
    show(item);
    if (item.approval) watch();
  },
  decided({ approval, status }) {
    for (const [id, card] of decidable) {
      if (card.approval !== approval) continue;
      card.status = status;
      if (shown.has(id)) decide(shown.get(id), status);
    }
    keepCards(decidable);
  },
  away({ turn, away: isAway }) {
    set(away, turn, isAway);
  },
  working({ turn, working: isWorking }) {
    set(working, turn, isWorking);
  },
  partial({ turn, step, seq, text, done }) {
    set(away, turn, false);
    if (shown.has(`out:${turn}/0`)) return;
    let piece = partial.get(turn);
    if (!piece) {
      piece = { line: element("li", "received partial"), text: "", step, drawn: 0 };
      // The whole is read out once it is there.
      piece.line.setAttribute("aria-live", "off");
      partial.set(turn, piece);
      log.append(piece.line);
      empty.hidden = true;
    }
    // A model call that begins, or begins anew, says what it says from the start.
    if (seq === 0 || piece.step !== step) piece.text = "";
    piece.step = step;
    piece.text += text;
    // A call that ends without a word wanted its tools.
    if (done && !piece.text) dropPartial(turn);
    else draw(piece);
  },
  error(word) {
    const passing = ["spool_full", "spool_failed", "busy", "overloaded", "not_stored"].includes(word.error.code);
    complain(word.error.message);
    if (word.error.where === "link" && !passing) ownerLink = null;
    if (!word.id) return;
    if (passing) setTimeout(() => waiting.has(word.id) && transmit(word.id, waiting.get(word.id)), 2_000);
    else settle(word.id, true);
  },
};

function setStatus(state, text) {
  status.dataset.state = state;
  status.textContent = text;
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/webchat/ws`);
  socket.onopen = () => socket.send(JSON.stringify({ type: "hello", key }));
  socket.onmessage = ({ data }) => {
    const word = JSON.parse(data);
    hear[word.type]?.(word);
  };
  socket.onclose = () => {
    setStatus("closed", "reconnecting…");
    setTimeout(connect, retry * (0.5 + Math.random() / 2));
    retry = Math.min(retry * 2, MAX_RETRY_MS);
  };
}

// The field is as high as what stands in it, up to a bound of the style.
function grow() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text || !say(text)) return;
  input.value = "";
  grow();
  input.focus();
});

input.addEventListener("input", grow);
input.addEventListener("keydown", (event) => {
  // Enter that ends a word of an input method sends nothing.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});

connect();
