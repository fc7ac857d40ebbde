// The page's half of the conversations. A message stays in `waiting` (and in localStorage) until the server says that
// it is stored, and is sent again on every reconnect with the same id: the server makes one event of it. Each conversation
// but the first has an id that the page draws, and begins to exist for the server with its first message.

import { Conversation } from "/webchat/conversation.js";
import { addButtons, decide, line } from "/webchat/lines.js";
import * as memory from "/webchat/memory.js";
import { announce, closeDrawer, drawList, isWide } from "/webchat/sidebar.js";

const FIRST_RETRY_MS = 300;
const MAX_RETRY_MS = 10_000;
const AGAIN_AFTER_MS = 2_000;
const MAX_WAITING = 200;
const MAX_WATCHED = 16;
const WAITING = "nexus.waiting.";
// Refusals that may be none a moment later.
const PASSING = ["spool_full", "spool_failed", "busy", "overloaded", "not_stored", "too_fast"];

const log = document.querySelector("#log");
const form = document.querySelector("#form");
const input = document.querySelector("#message");
const status = document.querySelector("#status");
const problem = document.querySelector("#problem");

// The key alone lets this page speak as its visitor; the visitor's id, which the server derives from it, is no secret.
const key = memory.recall("nexus.key") ?? newId();
memory.keep("nexus.key", key);
let visitor = memory.recall("nexus.visitor");
let ownerLink = takeOwnerLink();
// Each waiting message has a name of its own, so that two open pages do not overwrite each other's.
const waiting = new Map(memory.all(WAITING).sort(([, a], [, b]) => a.at - b.at));
const decidable = memory.cards();
const conversations = new Map();
let current = null;
let account = "default";
let socket = null;
let retry = FIRST_RETRY_MS;
let caughtUp = false;
let drawing = 0;

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

/** The conversation of `thread`; null is the visitor's first one. */
function conversationOf(thread = null) {
  if (!conversations.has(thread)) conversations.set(thread, new Conversation(thread, redraw));
  return conversations.get(thread);
}

// Many changes come at once.
function redraw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    const listed = [...conversations.values()].filter((known) => known === current || !known.isEmpty);
    drawList(listed, current, choose);
    memory.keepThreads(listed.filter((known) => !known.isEmpty));
  });
}

function open(conversation) {
  const left = current;
  if (left === conversation) return;
  current = conversation;
  conversation.isUnread = false;
  memory.keepOpenThread(conversation.thread);

  input.value = memory.draft(conversation.thread);
  grow();
  conversation.present();
  send({ type: "open", thread: conversation.thread });
  // A conversation that was begun and left without a word is none.
  if (left?.isEmpty && left.thread && !memory.draft(left.thread)) conversations.delete(left.thread);
}

function choose(conversation) {
  open(conversation);
  closeDrawer();
  // On a narrow screen the focus on the field would bring up a keyboard that covers the history.
  (isWide() || conversation.isEmpty ? input : log).focus();
}

function begin() {
  if (current.isEmpty) return choose(current);
  const made = conversationOf(newId());
  made.at = Date.now();
  made.isLoaded = true;
  choose(made);
}

function remember(id, message) {
  waiting.set(id, message);
  memory.keep(WAITING + id, JSON.stringify(message));
}

function forget(id) {
  waiting.delete(id);
  memory.keep(WAITING + id, null);
}

const turnOf = (id) => /^out:([^/]*)\//.exec(id)?.[1];
const eventId = (id) => `webchat:${account}/${visitor}/${id}`;

// `late`: it comes from the history, and what is shown already may be younger.
function show(conversation, { id, from, text, at, approval }, late = false) {
  const known = conversation.lines.get(id);
  if (known) return known;

  const isMine = from === "visitor";
  const card = approval ?? decidable.get(id);
  const made = line({ id, from, text, at: at || Date.now(), card });
  if (isMine) conversation.noteText(made.querySelector(".plain").textContent, Number(made.dataset.at));
  else conversation.at = Math.max(conversation.at, Number(made.dataset.at));
  conversation.place(id, made, late);
  if (isMine && !late) conversation.scrollDown();

  if (isMine || !card) return made;
  if (approval) {
    decidable.set(id, approval);
    memory.keepCards(decidable);
  }
  addButtons(made, card, (words) => say(conversation, words));
  if (card.status) decide(made, card.status);
  conversation.follow();
  return made;
}

function send(word) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(word));
}

// Asks the server to tell the outcome of the cards that wait.
function watch() {
  const pending = [...decidable.values()].filter((card) => !card.status).slice(-MAX_WATCHED);
  if (pending.length) send({ type: "watch", cards: pending.map(({ approval, arguments_hash }) => ({ approval, arguments_hash })) });
}

function say(conversation, text) {
  if (waiting.size >= MAX_WAITING) {
    complain("The server has not answered for a while; try again later.");
    return false;
  }
  const id = newId();
  const message = { text, at: Date.now(), thread: conversation.thread };
  remember(id, message);
  showWaiting(id, message);
  transmit(id, message);
  return true;
}

function showWaiting(id, { text, at, thread }) {
  // Before the first answer of the server the visitor has no id; what waits is shown with the history.
  if (!visitor) return;
  show(conversationOf(thread), { id: eventId(id), from: "visitor", text, at }).classList.add("waiting");
}

function transmit(id, { text, thread }) {
  send({ type: "message", id, text, thread });
}

function settle(id, failed) {
  const message = waiting.get(id);
  forget(id);
  const shown = message && conversationOf(message.thread).lines.get(eventId(id));
  shown?.classList.remove("waiting");
  shown?.classList.toggle("failed", failed);
}

function complain(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

const hear = {
  ready(word) {
    account = word.account;
    visitor = word.peer;
    memory.keep("nexus.visitor", visitor);
    if (ownerLink) send({ type: "claim", link: ownerLink });
    caughtUp = false;
    retry = FIRST_RETRY_MS;
    setStatus("open", "connected");
    watch();
  },
  threads({ items }) {
    for (const { thread, text, at } of items) {
      const known = conversationOf(thread);
      known.title = text.trim() || known.title;
      known.at = Math.max(known.at, at);
    }
    redraw();
  },
  history({ thread, ...part }) {
    const told = conversationOf(thread);
    if (!told.isLoaded) complain("");
    told.takeHistory(part, (item) => {
      if (item.from !== "visitor") told.dropPieces(turnOf(item.id));
      show(told, item, true);
    });

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
  stored({ id }) {
    settle(id, false);
    complain("");
  },
  part(item) {
    const told = conversationOf(item.thread);
    const turn = turnOf(item.id);
    const isNew = !told.lines.has(item.id);
    // The whole takes the place of the pieces that were shown while it was made.
    told.dropPieces(turn);
    told.setAway(turn, false);
    show(told, item);
    if (told !== current && isNew) {
      told.isUnread = true;
      announce(told);
    }
    told.note();
    if (item.approval) watch();
  },
  decided({ approval, status }) {
    for (const [id, card] of decidable) {
      if (card.approval !== approval) continue;
      card.status = status;
      for (const { lines } of conversations.values()) if (lines.has(id)) decide(lines.get(id), status);
    }
    memory.keepCards(decidable);
  },
  away({ thread, turn, away }) {
    conversationOf(thread).setAway(turn, away);
  },
  working({ thread, turn, working }) {
    conversationOf(thread).setWorking(turn, working);
  },
  partial({ thread, ...piece }) {
    const told = conversationOf(thread);
    told.setAway(piece.turn, false);
    if (!told.lines.has(`out:${piece.turn}/0`)) told.addPiece(piece);
  },
  error({ id, error }) {
    const isPassing = PASSING.includes(error.code);
    complain(error.message);
    if (error.where === "link" && !isPassing) ownerLink = null;

    if (!id) {
      if (isPassing && !current.isLoaded) setTimeout(() => send({ type: "open", thread: current.thread }), AGAIN_AFTER_MS);
    } else if (isPassing) {
      setTimeout(() => waiting.has(id) && transmit(id, waiting.get(id)), AGAIN_AFTER_MS);
    } else {
      settle(id, true);
    }
  },
};

function setStatus(state, text) {
  status.dataset.state = state;
  status.textContent = text;
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/webchat/ws`);
  socket.onopen = () => send({ type: "hello", key, thread: current.thread });
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

// The field is as high as its text, up to a bound of the style.
function grow() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text || !say(current, text)) return;
  input.value = "";
  memory.keepDraft(current.thread, "");
  grow();
  input.focus();
});

input.addEventListener("input", () => {
  memory.keepDraft(current.thread, input.value);
  grow();
});
input.addEventListener("keydown", (event) => {
  // Enter that ends a word of an input method sends nothing.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});

document.querySelector("#earlier").addEventListener("click", () => {
  send({ type: "earlier", thread: current.thread, before: current.oldest });
  // The button may be gone with the answer.
  log.focus();
});
for (const button of document.querySelectorAll(".begin")) button.addEventListener("click", begin);

for (const { thread, title, at, isUnread } of memory.threads()) Object.assign(conversationOf(thread), { title, at, isUnread });
for (const { thread } of waiting.values()) conversationOf(thread);
open(conversationOf(memory.openThread()));
connect();
