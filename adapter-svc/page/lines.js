// The lines of the conversation: text, day, time, and an approval's buttons with what became of it.

import { parse, render } from "/webchat/markdown.js";

const DECIDED = {
  approved: "Approved.",
  consumed: "Approved, and done.",
  rejected: "Denied.",
  expired: "Nobody answered in time, so it was not done.",
  cancelled: "Withdrawn: it is asked no more.",
  superseded: "Asked anew, with other details.",
  changed: "Changed by somebody since: these buttons decide no more.",
  gone: "No longer open.",
};
// A word that decided nothing (it did not arrive, or more than one must agree) may be said again.
const AGAIN_AFTER_MS = 10_000;
// What a button says for the visitor, and what the history has in the place of a card's code.
const BUTTONS_WORD = /^(approve|deny) [0-9A-Z-]{4,20} #[0-9a-f]{16}$/;
const VEILED_CODE = "····-····";

const log = document.querySelector("#log");
const empty = document.querySelector("#empty");

// Whoever looks at the end goes on seeing it, also when the log gets lower; whoever reads further up is left there.
let atEnd = true;
log.addEventListener("scroll", () => (atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80));
new ResizeObserver(() => atEnd && bottom()).observe(log);

const dayOf = (at) => new Date(at).toDateString();

/** A new element of the class `name`. */
export function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  if (text) made.append(text);
  return made;
}

/** What was said: `plain`, as it is written, or Markdown as it is meant. */
export function body(text, plain) {
  const shown = element("div", plain ? "plain" : "markdown");
  shown.append(plain ? text : render(parse(text)));
  return shown;
}

/**
 * A line for an item, not yet in its place. The visitor's own words stand as they typed them; so does a card, whose
 * arguments must not look other than they are.
 */
export function line({ id, from, text, at, card }) {
  const mine = from === "visitor";
  const made = element("li", mine ? "sent" : "received");
  made.dataset.id = id;
  made.dataset.at = at;

  const when = new Date(at);
  const time = element("time", "", when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
  time.dateTime = when.toISOString();
  time.title = when.toLocaleString([], { dateStyle: "full", timeStyle: "medium" });
  const foot = element("p", "foot", element("span", "hidden", mine ? "You, " : "Nexus, "));
  foot.append(time);
  made.append(body(worded(text, mine, card), mine || card), foot);
  return made;
}

function worded(text, mine, card) {
  if (card) return text.replaceAll(VEILED_CODE, card.code);
  const pressed = mine && BUTTONS_WORD.exec(text)?.[1];
  return pressed ? { approve: "Approve", deny: "Deny" }[pressed] : text;
}

/** Puts `made` behind all, or, where it is `late`, where its time belongs. */
export function place(made, late, jump) {
  let after = log.lastElementChild;
  while (late && after && (after.classList.contains("day") || Number(after.dataset.at) > Number(made.dataset.at))) {
    after = after.previousElementSibling;
  }
  const last = after === log.lastElementChild;
  if (after) after.after(made);
  else log.prepend(made);

  empty.hidden = true;
  if (last && !made.previousElementSibling) made.before(separator(made));
  else if (!last) days();
  else if (made.previousElementSibling?.dataset.at && dayOf(Number(made.previousElementSibling.dataset.at)) !== dayOf(Number(made.dataset.at))) {
    made.before(separator(made));
  }
  if (atEnd || jump) bottom();
}

/** Shows the end of the conversation to whoever looks at it. */
export function follow() {
  if (atEnd) bottom();
}

function bottom() {
  log.scrollTop = log.scrollHeight;
}

function separator(made) {
  const when = new Date(Number(made.dataset.at));
  const today = dayOf(Date.now());
  const yesterday = dayOf(Date.now() - 86_400_000);
  const full = when.toLocaleDateString([], { weekday: "long", year: "numeric", month: "long", day: "numeric" });
  const named = { [yesterday]: "Yesterday", [today]: "Today" }[when.toDateString()];
  const shown = element("li", "day", named ?? full);
  shown.title = full;
  return shown;
}

// A line that came late may begin a day, or stand where another one began it.
function days() {
  for (const old of log.querySelectorAll("li.day")) old.remove();
  let day;
  for (const made of [...log.children]) {
    if (!made.dataset.at) continue;
    const own = dayOf(Number(made.dataset.at));
    if (own !== day) made.before(separator(made));
    day = own;
  }
}

/**
 * The buttons of an approval's card. They say the words that decide it, as if the visitor had typed them, and which
 * arguments they were shown. The server says which part is a card; what a part's text says makes no buttons.
 */
export function addButtons(made, { code, arguments_hash }, say) {
  if (made.querySelector(".card")) return;
  const row = element("div", "card");
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", `Decision ${code}`);
  const buttons = element("div", "buttons");
  const outcome = element("p", "outcome");
  outcome.setAttribute("role", "status");

  for (const [label, word] of [["Approve", "approve"], ["Deny", "deny"]]) {
    const button = element("button", word, label);
    button.type = "button";
    button.title = `${label} ${code}`;
    button.addEventListener("click", () => {
      if (!say(`${word} ${code} #${arguments_hash.slice(0, 16)}`)) return;
      able(row, false);
      outcome.textContent = "Sent. Waiting for the decision to be taken…";
      setTimeout(() => reopen(row), AGAIN_AFTER_MS);
    });
    buttons.append(button);
  }
  row.append(buttons, outcome);
  made.querySelector(".foot").before(row);
}

function able(row, isAble) {
  for (const button of row.querySelectorAll("button")) button.disabled = !isAble;
}

function reopen(row) {
  if (row.dataset.decided) return;
  able(row, true);
  row.querySelector(".outcome").textContent = "Not decided yet.";
}

/** Shows what became of the approval whose card `made` is, and lets nobody decide it again. */
export function decide(made, status) {
  const row = made.querySelector(".card");
  if (!row) return;
  row.dataset.decided = status;
  able(row, false);
  row.querySelector(".outcome").textContent = DECIDED[status] ?? "Decided.";
}
