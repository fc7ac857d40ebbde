// The page's half of the conversation. A message stays in `waiting` (and in localStorage) until the server says that
// it is stored, and is sent again on every reconnect with the same id: the server makes one event of it.

const FIRST_RETRY_MS = 300;
const MAX_RETRY_MS = 10_000;
const MAX_WAITING = 200;
const WAITING = "nexus.waiting.";
// The server says every few seconds that it still cannot reach the assistant; a server that is silent says nothing.
const AWAY_HOLDS_MS = 20_000;

const log = document.querySelector("#log");
const form = document.querySelector("#form");
const input = document.querySelector("#message");
const status = document.querySelector("#status");
const problem = document.querySelector("#problem");
const empty = document.querySelector("#empty");
const absent = document.querySelector("#away");

// The key alone lets this page speak as its visitor; the visitor's id, which the server derives from it, is no secret.
const key = remembered("nexus.key", newId);
let visitor = recall("nexus.visitor");
let ownerLink = takeOwnerLink();
const waiting = recalled();
const shown = new Map();
const partial = new Map();
const away = new Map();
let account = "default";
let socket = null;
let retry = FIRST_RETRY_MS;
let caughtUp = false;

function newId() {
  // `randomUUID` exists on secure origins only; the page is also served over plain HTTP.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

// The link of the owner is used once; it must not stay in the address bar or the history.
function takeOwnerLink() {
  const link = /^#owner=([0-9A-Za-z]+)$/.exec(location.hash)?.[1];
  if (link) history.replaceState(null, "", location.pathname);
  return link;
}

function remembered(key, make) {
  try {
    const known = localStorage.getItem(key);
    if (known) return known;
    const made = make();
    localStorage.setItem(key, made);
    return made;
  } catch {
    return make();
  }
}

// Each waiting message has a key of its own, so that two open pages do not overwrite each other's.
function recalled() {
  const found = [];
  try {
    for (const key of Object.keys(localStorage)) {
      if (key.startsWith(WAITING)) found.push([key.slice(WAITING.length), JSON.parse(localStorage.getItem(key))]);
    }
  } catch {
    // Without storage there is nothing to recall.
  }
  return new Map(found.sort(([, a], [, b]) => a.at - b.at));
}

function remember(id, message) {
  waiting.set(id, message);
  try {
    localStorage.setItem(WAITING + id, JSON.stringify(message));
  } catch {
    // Without storage a reload forgets what was not stored; the open page still sends it.
  }
}

function forget(id) {
  waiting.delete(id);
  try {
    localStorage.removeItem(WAITING + id);
  } catch {
    // See above.
  }
}

const eventId = (id) => `webchat:${account}/${visitor}/${id}`;

function show({ id, from, text, at, approval }) {
  const known = shown.get(id);
  if (known) return known;
  const line = document.createElement("li");
  line.dataset.id = id;
  line.className = from === "visitor" ? "sent" : "received";
  line.append(text);
  const time = document.createElement("time");
  const when = new Date(at || Date.now());
  time.dateTime = when.toISOString();
  time.textContent = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  line.append(time);
  if (from !== "visitor" && approval) addButtons(line, approval);
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  log.append(line);
  shown.set(id, line);
  empty.hidden = true;
  if (atEnd || from === "visitor") log.scrollTop = log.scrollHeight;
  return line;
}

// The buttons of an approval's card say the words that decide it, as if the visitor had typed them, and which arguments
// they were shown. The server says which part is a card; what a part's text says makes no buttons.
function addButtons(line, { code, arguments_hash }) {
  const row = document.createElement("div");
  row.className = "buttons";
  for (const [label, word] of [["Approve", "approve"], ["Deny", "deny"]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${label} ${code}`;
    button.addEventListener("click", () => say(`${word} ${code} #${arguments_hash.slice(0, 16)}`));
    row.append(button);
  }
  line.append(row);
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

// Turns whose assistant cannot be reached, each until it is said no more.
function setAway(turn, isAway) {
  clearTimeout(away.get(turn));
  away.delete(turn);
  if (isAway) away.set(turn, setTimeout(() => setAway(turn, false), AWAY_HOLDS_MS));
  absent.hidden = away.size === 0;
}

function complain(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

const hear = {
  ready(word) {
    account = word.account;
    visitor = word.peer;
    try {
      localStorage.setItem("nexus.visitor", visitor);
    } catch {
      // Without storage the next page learns it again.
    }
    if (ownerLink) socket.send(JSON.stringify({ type: "claim", link: ownerLink }));
    caughtUp = false;
    retry = FIRST_RETRY_MS;
    setStatus("open", "connected");
  },
  history(word) {
    word.items.forEach(show);
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
    const turn = /^out:([^/]*)\//.exec(item.id)?.[1];
    partial.get(turn)?.remove();
    partial.delete(turn);
    setAway(turn, false);
    show(item);
  },
  away({ turn, away: isAway }) {
    setAway(turn, isAway);
  },
  partial({ turn, step, seq, text, done }) {
    setAway(turn, false);
    if (shown.has(`out:${turn}/0`)) return;
    let line = partial.get(turn);
    if (!line) {
      line = document.createElement("li");
      line.className = "received partial";
      partial.set(turn, line);
      log.append(line);
      empty.hidden = true;
    }
    // A model call that begins, or begins anew, says what it says from the start.
    if (seq === 0 || line.dataset.step !== String(step)) line.textContent = "";
    line.dataset.step = step;
    line.append(text);
    // A call that ends without a word wanted its tools.
    if (done && !line.textContent) line.textContent = "…";
    log.scrollTop = log.scrollHeight;
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

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text || !say(text)) return;
  input.value = "";
  input.focus();
});

connect();
