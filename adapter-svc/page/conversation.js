// One conversation of the visitor: its lines, the answer that is being made, and what its turns are doing. The frame
// `#log` shows the lines of one conversation at a time, and scrolls.

import { body, element, separator } from "/webchat/lines.js";

// The server repeats every few seconds that a turn is worked on, or that its assistant is away; both end with silence.
const HOLDS_MS = 20_000;
const MAX_TITLE = 240;
// Closer to the end than this counts as looking at the end.
const END_PX = 80;

const frame = document.querySelector("#log");
const empty = document.querySelector("#empty");
const thinking = document.querySelector("#thinking");
const absent = document.querySelector("#away");
const earlier = document.querySelector("#earlier");
let current = null;

// A reader at the end keeps seeing the end, also when the frame gets lower; a reader further up is left there.
frame.addEventListener("scroll", () => current?.noteScroll());
new ResizeObserver(() => current?.follow()).observe(frame);

const dayOf = (at) => new Date(at).toDateString();

export class Conversation {
  /** A conversation without lines. `thread` is null for the visitor's first one; `changed` is called when the list has to show it anew. */
  constructor(thread, changed) {
    this.thread = thread;
    this.changed = changed;
    this.title = "";
    this.at = 0;
    this.isUnread = false;
    // Its history has come, or it has none yet.
    this.isLoaded = false;
    // The place of its oldest line in the stream of events, and whether there are older ones.
    this.oldest = null;
    this.hasMore = false;
    this.lines = new Map();
    this.pieces = new Map();
    this.working = new Map();
    this.away = new Map();
    this.isAtEnd = true;
    this.top = 0;
    this.list = element("ol", "lines");
    this.list.setAttribute("role", "log");
    this.list.setAttribute("aria-live", "polite");
    this.list.setAttribute("aria-label", "Messages");
  }

  /** Whether nothing was ever said in it. */
  get isEmpty() {
    return !this.title && this.list.childElementCount === 0;
  }

  get isShown() {
    return this === current;
  }

  /** Takes the place of the conversation that is shown. */
  present() {
    current = this;
    frame.replaceChildren(earlier, this.list);
    if (this.isAtEnd) this.scrollDown();
    else frame.scrollTop = this.top;
    this.note();
  }

  /** Brings what stands around the lines up to date. */
  note() {
    this.changed();
    if (!this.isShown) return;
    earlier.hidden = !this.hasMore;
    empty.hidden = !this.isLoaded || !this.isEmpty;
    absent.hidden = this.away.size === 0;
    thinking.hidden = this.working.size === 0 || !absent.hidden;
    this.follow();
  }

  /** Notes that `text` was said in it at `at`. */
  noteText(text, at) {
    this.title ||= text.trim().slice(0, MAX_TITLE);
    this.at = Math.max(this.at, at);
  }

  noteScroll() {
    this.top = frame.scrollTop;
    this.isAtEnd = frame.scrollHeight - frame.scrollTop - frame.clientHeight < END_PX;
  }

  /** Shows the end to a reader who looks at the end. */
  follow() {
    if (this.isAtEnd) this.scrollDown();
  }

  scrollDown() {
    this.isAtEnd = true;
    if (this.isShown) frame.scrollTop = frame.scrollHeight;
  }

  /**
   * Takes a part of its history: `place` puts the items into their places. The reader stays where they are, and a screen
   * reader does not read all of it.
   */
  takeHistory({ before, more, items }, place) {
    const below = frame.scrollHeight - frame.scrollTop;
    this.list.setAttribute("aria-live", "off");
    if (before !== undefined || this.oldest === null) this.hasMore = more;
    for (const item of items) {
      this.oldest = Math.min(this.oldest ?? item.sequence, item.sequence);
      place(item);
    }

    this.isLoaded = true;
    this.note();
    if (before !== undefined && this.isShown) frame.scrollTop = frame.scrollHeight - below;
    setTimeout(() => this.list.setAttribute("aria-live", "polite"), 1_000);
  }

  /** Puts the line `made` behind all others, or, if it is `late`, at its time. */
  place(id, made, late) {
    this.lines.set(id, made);

    let after = this.list.lastElementChild;
    while (late && after && (after.classList.contains("day") || Number(after.dataset.at) > Number(made.dataset.at))) {
      after = after.previousElementSibling;
    }
    const isLast = after === this.list.lastElementChild;
    if (after) after.after(made);
    else this.list.prepend(made);

    const before = made.previousElementSibling;
    if (!isLast) this.separateDays();
    else if (!before || (before.dataset.at && dayOf(Number(before.dataset.at)) !== dayOf(Number(made.dataset.at)))) {
      made.before(separator(Number(made.dataset.at)));
    }
    this.note();
  }

  // A line that came late may begin a day, or stand where another one began it.
  separateDays() {
    for (const old of this.list.querySelectorAll(":scope > li.day")) old.remove();
    let day;
    for (const made of [...this.list.children]) {
      if (!made.dataset.at) continue;
      const own = dayOf(Number(made.dataset.at));
      if (own !== day) made.before(separator(Number(made.dataset.at)));
      day = own;
    }
  }

  setWorking(turn, isWorking) {
    this.set(this.working, turn, isWorking);
  }

  setAway(turn, isAway) {
    this.set(this.away, turn, isAway);
  }

  set(turns, turn, holds) {
    clearTimeout(turns.get(turn));
    turns.delete(turn);
    if (holds) turns.set(turn, setTimeout(() => this.set(turns, turn, false), HOLDS_MS));
    this.note();
  }

  /** Adds a piece of an answer that is being made. */
  addPiece({ turn, step, seq, text, done }) {
    let piece = this.pieces.get(turn);
    if (!piece) {
      piece = { line: element("li", "received partial"), text: "", step, drawn: 0 };
      // The whole is read out once it is there.
      piece.line.setAttribute("aria-live", "off");
      this.pieces.set(turn, piece);
      this.list.append(piece.line);
      this.note();
    }
    // A model call that begins, or begins again, says what it says from the start.
    if (seq === 0 || piece.step !== step) piece.text = "";
    piece.step = step;
    piece.text += text;

    // A call that ends without a word wanted its tools.
    if (done && !piece.text) this.dropPieces(turn);
    else this.draw(piece);
  }

  // Pieces may come faster than a screen is drawn.
  draw(piece) {
    if (piece.drawn) return;
    piece.drawn = requestAnimationFrame(() => {
      piece.drawn = 0;
      piece.line.replaceChildren(body(piece.text || "…", false));
      this.follow();
    });
  }

  /** Removes the pieces of `turn`: the whole answer has come. */
  dropPieces(turn) {
    this.pieces.get(turn)?.line.remove();
    this.pieces.delete(turn);
  }
}
