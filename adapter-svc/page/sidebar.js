// The list of conversations: beside the conversation on a wide screen, a drawer over it on a narrow one.

import { element } from "/webchat/lines.js";

const sidebar = document.querySelector("#sidebar");
const list = document.querySelector("#conversations");
const chat = document.querySelector("#chat");
const toggle = document.querySelector("#toggle");
const heading = document.querySelector("#heading");
const announcement = document.querySelector("#announcement");

const UNTITLED = "New conversation";
const entries = new Map();

/** What the list calls a conversation. */
export const titleOf = (conversation) => conversation.title || UNTITLED;

/** Shows `conversations`, the newest first, of which `current` is open; `choose` opens another one. */
export function drawList(conversations, current, choose) {
  const sorted = [...conversations].sort((a, b) => b.at - a.at);
  const focused = document.activeElement;

  for (const [known, { entry }] of entries) {
    if (sorted.includes(known)) continue;
    entry.remove();
    entries.delete(known);
  }

  sorted.forEach((conversation, index) => {
    if (!entries.has(conversation)) entries.set(conversation, make(() => choose(conversation)));
    const parts = entries.get(conversation);
    fill(parts, conversation, conversation === current);
    if (list.children[index] !== parts.entry) list.insertBefore(parts.entry, list.children[index] ?? null);
  });

  // An element that is moved loses the focus.
  if (list.contains(focused) && focused !== document.activeElement) focused.focus();
  setText(heading, titleOf(current));
}

function make(choose) {
  const entry = document.createElement("li");
  const button = element("button", "conversation");
  button.type = "button";
  button.addEventListener("click", choose);
  const title = element("span", "title");
  const time = element("time", "");
  const state = element("span", "state");
  button.append(title, time, state);
  entry.append(button);
  return { entry, button, title, time, state };
}

function fill({ button, title, time, state }, conversation, isCurrent) {
  setText(title, titleOf(conversation));
  button.title = titleOf(conversation);
  if (isCurrent) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
  button.tabIndex = isCurrent ? 0 : -1;
  button.classList.toggle("unread", conversation.isUnread);

  if (conversation.at) {
    const when = new Date(conversation.at);
    setText(time, short(when));
    time.dateTime = when.toISOString();
    time.title = when.toLocaleString([], { dateStyle: "full", timeStyle: "short" });
  }
  setText(state, stateOf(conversation));
}

function stateOf({ isUnread, away, working }) {
  if (isUnread) return "new answer";
  if (away.size) return "assistant away";
  return working.size ? "thinking…" : "";
}

// Text that has not changed is not set, so that a screen reader does not read it again.
function setText(shown, text) {
  if (shown.textContent !== text) shown.textContent = text;
}

/** The time of a moment today, `Yesterday`, or the date, with the year unless it is this one. */
function short(when) {
  const now = new Date();
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  if (when.toDateString() === now.toDateString()) return when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (when.toDateString() === yesterday.toDateString()) return "Yesterday";
  const year = when.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return when.toLocaleDateString([], { day: "numeric", month: "short", year });
}

/** Tells a reader who cannot see the list that `conversation` has an answer. */
export function announce(conversation) {
  announcement.textContent = `New answer in “${titleOf(conversation)}”.`;
}

// The entry of the open conversation is one stop of the Tab key; the arrow keys move on from there.
list.addEventListener("keydown", (event) => {
  const buttons = [...list.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  buttons[next]?.focus();
});

/** Whether the list is a drawer that covers the conversation at present. */
export const isDrawerOpen = () => toggle.getAttribute("aria-expanded") === "true";

function setDrawer(isOpen) {
  toggle.setAttribute("aria-expanded", String(isOpen));
  document.body.classList.toggle("listing", isOpen);
  chat.inert = isOpen;
}

/** Closes the drawer, if it is open; the focus goes back to the button that opened it. */
export function closeDrawer() {
  if (!isDrawerOpen()) return;
  setDrawer(false);
  toggle.focus();
}

toggle.addEventListener("click", () => {
  setDrawer(true);
  (list.querySelector("[aria-current]") ?? sidebar.querySelector("button")).focus();
});
document.querySelector("#close").addEventListener("click", closeDrawer);
document.querySelector("#backdrop").addEventListener("click", closeDrawer);
document.addEventListener("keydown", (event) => event.key === "Escape" && closeDrawer());

const wide = matchMedia("(min-width: 48rem)");
// A window that gets wide has the list beside the conversation.
wide.addEventListener("change", () => setDrawer(false));

/** Whether the list stands beside the conversation. */
export const isWide = () => wide.matches;
