// The lines of a conversation: text, day, time, and an approval's buttons with its outcome.

import { parse, render } from "/webchat/markdown.js";

const DECIDED = {
  approved: "Approved.",
  consumed: "Approved, and done.",
  denied: "Denied.",
  expired: "Expired. No one decided in time, so it was not done.",
  canceled: "Canceled. No decision is needed any more.",
  superseded: "Replaced by a new request with other details.",
  changed: "The details have changed, so these buttons no longer apply.",
  gone: "No longer open.",
};
// After this time the buttons can be pressed again: the word may not have arrived, or more than one person must agree.
const AGAIN_AFTER_MS = 10_000;
// The words that a button says for the visitor, and what the history has in the place of a card's code.
const BUTTONS_WORD = /^(approve|deny) [0-9A-Z-]{4,20} #[0-9a-f]{16}$/;
const VEILED_CODE = "····-····";

/** A new element of the class `name`. */
export function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  if (text) made.append(text);
  return made;
}

/** The text as it is written if `plain`, else rendered as Markdown. */
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

/** The line that begins the day of `at`. */
export function separator(at) {
  const when = new Date(at);
  const now = new Date();
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  const full = when.toLocaleDateString([], { weekday: "long", year: "numeric", month: "long", day: "numeric" });
  const named = { [yesterday.toDateString()]: "Yesterday", [now.toDateString()]: "Today" }[when.toDateString()];
  const shown = element("li", "day", named ?? full);
  shown.title = full;
  return shown;
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
      outcome.textContent = "Sent. Waiting for the result…";
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

/** Shows the outcome of the approval of card `made`, and disables its buttons. */
export function decide(made, status) {
  const row = made.querySelector(".card");
  if (!row) return;
  row.dataset.decided = status;
  able(row, false);
  row.querySelector(".outcome").textContent = DECIDED[status] ?? "Decided.";
}
