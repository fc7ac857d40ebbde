// Markdown as agents write it, read into a tree and shown as elements and text nodes that this file makes: nothing of a
// text is ever read as HTML. A node is a string, or `{ tag, attrs, children }`. Every step is linear in the text's length,
// and what is nested deeper than the bounds below stays text.

const MAX_BLOCK_DEPTH = 12;
const MAX_INLINE_DEPTH = 16;
const MAX_COLUMNS = 40;
// Whoever sends more than this has no page in mind: it is shown as it is.
const MAX_TEXT = 256 * 1024;
// What a line is, its beginning says.
const HEAD = 512;

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const COLUMNS = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

const element = (tag, children, attrs = {}) => ({ tag, attrs, children });

/** The tree of `text`: a list of blocks. */
export function parse(text) {
  const whole = String(text).replace(/\r\n?/g, "\n");
  if (whole.length > MAX_TEXT) return [element("pre", [whole], { class: "plain" })];
  return blocks(whole.split("\n"), 0);
}

/** Elements and text nodes of a tree, in a fragment of `page`. */
export function render(tree, page = document) {
  const fragment = page.createDocumentFragment();
  for (const node of tree) fragment.append(made(node, page));
  return fragment;
}

function made(node, page) {
  if (typeof node === "string") return page.createTextNode(node);
  const shown = page.createElement(node.tag);
  for (const [name, value] of Object.entries(node.attrs)) shown.setAttribute(name, value);
  for (const child of node.children) shown.append(made(child, page));
  return shown;
}

/** The address that `text` is, where a page may lead there; none else. */
export function address(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

// ---- blocks

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const read = fence(lines, at) ?? heading(lines, at) ?? nested(lines, at, depth) ?? table(lines, at) ?? paragraph(lines, at, depth);
    found.push(read.node);
    at = read.next;
  }
  return found;
}

const head = (line) => line.slice(0, HEAD);
const isRule = (line) => line.length < HEAD && RULE.test(line);

function fence(lines, at) {
  const opened = FENCE.exec(head(lines[at]));
  if (!opened) return null;
  const [, mark, word] = opened;
  const code = [];
  let next = at + 1;
  // A block that is not closed yet goes to the end: so it looks right while it is being written.
  for (; next < lines.length; next += 1) {
    const line = lines[next].trim();
    if (line.startsWith(mark) && line.length < HEAD && line.split(mark[0]).join("") === "") break;
    code.push(lines[next]);
  }
  const language = word.trim().split(/\s/)[0];
  const attrs = language ? { "data-language": language } : {};
  return { node: element("pre", [element("code", [code.join("\n")])], { ...attrs, tabindex: "0" }), next: next + 1 };
}

function heading(lines, at) {
  if (isRule(lines[at])) return { node: element("hr", []), next: at + 1 };
  const opened = HEADING.exec(head(lines[at]));
  if (!opened) return null;
  // The page has a heading of its own above these.
  const level = Math.min(opened[1].length + 1, 6);
  const text = lines[at].slice(opened[0].length).trim().replace(/(?<=^|\s)#+$/, "");
  return { node: element(`h${level}`, inlines(text.trim())), next: at + 1 };
}

function nested(lines, at, depth) {
  if (depth >= MAX_BLOCK_DEPTH) return null;
  return quote(lines, at, depth) ?? list(lines, at, depth);
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  const inside = [];
  let next = at;
  for (; next < lines.length && QUOTE.test(lines[next]); next += 1) inside.push(lines[next].replace(QUOTE, ""));
  return { node: element("blockquote", blocks(inside, depth + 1)), next };
}

function list(lines, at, depth) {
  const first = item(lines[at]);
  if (!first) return null;
  const entries = [];
  let [next, loose] = [at, false];

  while (next < lines.length) {
    const opened = item(lines[next]);
    if (!opened || opened.kind !== first.kind || isRule(lines[next])) break;
    const inside = [lines[next].slice(opened.width)];
    next += 1;
    for (; next < lines.length; next += 1) {
      const line = lines[next];
      const deeper = indent(line) >= opened.indent;
      if (!line.trim()) {
        // A blank line belongs to the entry if what follows does.
        if (next + 1 >= lines.length || indent(lines[next + 1]) < opened.indent || !lines[next + 1].trim()) break;
        loose = true;
        inside.push("");
      } else if (deeper) inside.push(line.slice(opened.indent));
      else if (starts(line) || !lines[next - 1].trim()) break;
      else inside.push(line);
    }
    entries.push(element("li", entry(inside, depth)));

    // Entries may stand apart by one blank line.
    if (next + 1 < lines.length && !lines[next].trim() && item(lines[next + 1])?.kind === first.kind) next += 1;
  }

  const attrs = first.number === undefined || first.number === 1 ? {} : { start: String(first.number) };
  return { node: element(first.number === undefined ? "ul" : "ol", entries, loose ? { ...attrs, class: "loose" } : attrs), next };
}

const indent = (line) => head(line).search(/[^ ]|$/);

// What an entry's first line says: its kind, its number, where its text begins.
function item(line) {
  const opened = ITEM.exec(head(line));
  if (!opened) return null;
  const [whole, before, mark, gap] = opened;
  const number = /^\d/.test(mark) ? Number.parseInt(mark, 10) : undefined;
  const width = before.length + mark.length + (gap.length > 4 ? 1 : gap.length);
  // Two blanks are enough for what lies below an entry, as agents write it.
  return { kind: mark.at(-1), number, width: Math.min(width, whole.length), indent: Math.min(width, before.length + 2) };
}

// A short entry is text without a paragraph around it.
function entry(lines, depth) {
  const task = /^\[([ xX])\] /.exec(lines[0]);
  if (task) lines[0] = lines[0].slice(4);
  const found = blocks(lines.map((line, at) => (at ? undent(line) : line)), depth + 1);
  const inside = found[0]?.tag === "p" ? [...found[0].children, ...found.slice(1)] : found;
  return task ? [task[1] === " " ? "☐ " : "☑ ", ...inside] : inside;
}

// One blank more than needed is no difference.
const undent = (line) => (/^ [-*+\d]/.test(line) ? line.slice(1) : line);

function table(lines, at) {
  const [top, under] = [lines[at], lines[at + 1]];
  if (under === undefined || !top.includes("|") || under.length > HEAD || !COLUMNS.test(under) || !under.includes("-")) return null;
  const sides = cells(under).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const names = cells(top);
  if (names.length !== sides.length || names.length > MAX_COLUMNS) return null;

  const row = (tag, words) =>
    element("tr", sides.map((side, column) => element(tag, inlines(words[column] ?? ""), side ? { class: side } : {})));
  const body = [];
  let next = at + 2;
  for (; next < lines.length && lines[next].includes("|") && lines[next].trim(); next += 1) body.push(row("td", cells(lines[next])));

  const parts = [element("thead", [row("th", names)])];
  if (body.length) parts.push(element("tbody", body));
  return { node: element("div", [element("table", parts)], { class: "table", tabindex: "0" }), next };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const starts = (line) => FENCE.test(head(line)) || HEADING.test(head(line)) || QUOTE.test(line) || isRule(line) || item(line) !== null;

function paragraph(lines, at, depth) {
  const text = [lines[at].trim()];
  let next = at + 1;
  for (; next < lines.length && lines[next].trim(); next += 1) {
    if (depth < MAX_BLOCK_DEPTH && starts(lines[next])) break;
    if (table(lines, next)) break;
    text.push(lines[next].trim());
  }
  return { node: element("p", inlines(text.join("\n"))), next };
}

// ---- inside a block

const TOKEN = /\\([!-/:-@[-`{-~])|(`+)|!?\[((?:[^[\]\\\n]|\\.){1,500})\]\(<?([^\s<>()]{1,2000}(?:\([^\s<>()]{0,200}\))?)>?(?: +"[^"\n]{0,200}")?\)|<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>|(?<![A-Za-z0-9])(https?:\/\/[^\s<>"`]{1,2000})|(\*+|_+|~~+)|(\n)/g;
const WRAPS = { "*1": ["em"], "*2": ["strong"], "*3": ["strong", "em"], _1: ["em"], _2: ["strong"], _3: ["strong", "em"], "~2": ["del"] };

function inlines(text, links = true) {
  return woven(tokens(text, links));
}

// Code, links and line breaks as nodes, runs of `*`, `_`, `~` as marks, the rest as strings.
function tokens(text, links) {
  const found = [];
  const ticks = new Set();
  let from = 0;
  TOKEN.lastIndex = 0;
  for (let hit = TOKEN.exec(text); hit; hit = TOKEN.exec(text)) {
    const [whole, escaped, tick, label, target, angled, bare, marks] = hit;
    const token = { at: hit.index, end: hit.index + whole.length };
    if (escaped !== undefined) token.node = escaped;
    else if (tick) code(text, tick, token, ticks);
    else if (label !== undefined) token.node = links ? link(label, target, whole) : whole;
    else if (angled) token.node = links ? reference(angled, [angled.replace(/^mailto:/, "")]) : whole;
    else if (bare) plainAddress(bare, token, links);
    else if (marks) Object.assign(token, mark(text, hit.index, marks));
    else token.node = element("br", []);

    // The label of a link is read by this function too, which moves the expression's place.
    TOKEN.lastIndex = token.end;
    if (token.at > from) found.push(text.slice(from, token.at));
    found.push(token.node ?? token);
    from = token.end;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

// Backticks that nothing closes are text; that is looked for once for each length.
function code(text, tick, token, without) {
  token.node = tick;
  if (without.has(tick.length)) return;
  const closed = new RegExp(`(?<!\`)${tick}(?!\`)`, "g");
  closed.lastIndex = token.end;
  const close = closed.exec(text);
  if (!close) {
    without.add(tick.length);
    return;
  }
  const inside = text.slice(token.end, close.index).replaceAll("\n", " ");
  token.node = element("code", [/^ .*\S.* $/.test(head(inside)) && inside.length < HEAD ? inside.slice(1, -1) : inside]);
  token.end = close.index + tick.length;
}

// An address that a page must not lead to stays readable, as it was written.
const link = (label, target, whole) => (address(target) ? reference(target, inlines(label, false)) : whole);

function reference(target, children) {
  const href = address(target);
  if (!href) return element("span", children);
  // The title says where a label leads that says otherwise.
  return element("a", children, { href, title: href, rel: "noopener noreferrer nofollow", target: "_blank" });
}

function plainAddress(bare, token, links) {
  // Punctuation behind an address belongs to the sentence.
  let shown = bare.replace(/[.,;:!?'*_~]{1,20}$/, "");
  if (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
  token.end = token.at + shown.length;
  token.node = links ? reference(shown, [shown]) : shown;
}

function mark(text, at, marks) {
  const [before, after] = [text[at - 1] ?? " ", text[at + marks.length] ?? " "];
  const [opens, closes] = [/\S/.test(after), /\S/.test(before)];
  const kind = marks[0] + marks.length;
  // `snake_case` is a word.
  const word = marks[0] === "_" && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
  return WRAPS[kind] && !word ? { mark: kind, text: marks, opens, closes } : { node: marks };
}

// Pairs the marks, innermost first, and builds the tree.
function woven(list) {
  const open = new Map();
  const pairs = new Map();
  const opened = [];
  list.forEach((token, at) => {
    if (!token.mark) return;
    const mine = open.get(token.mark) ?? [];
    const from = token.closes ? mine.at(-1) : undefined;
    if (from !== undefined && from < at - 1) {
      pairs.set(from, at);
      // What was opened in between can close no more.
      while (opened.length && opened.at(-1) >= from) open.get(list[opened.pop()].mark).pop();
    } else if (token.opens) {
      open.set(token.mark, mine);
      mine.push(at);
      opened.push(at);
    }
  });
  return built(list, pairs);
}

function built(list, pairs) {
  const root = [];
  const stack = [{ children: root, until: -1 }];
  list.forEach((token, at) => {
    const top = stack.at(-1);
    if (top.until === at) stack.pop();
    else if (pairs.has(at) && stack.length <= MAX_INLINE_DEPTH) {
      const [outer, inner] = WRAPS[token.mark];
      const children = [];
      top.children.push(element(outer, inner ? [element(inner, children)] : children));
      stack.push({ children, until: pairs.get(at) });
    } else top.children.push(token.mark ? token.text : token);
  });
  return root;
}
