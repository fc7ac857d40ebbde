// Run by `markdown.rs` with the Bun that hooks run in.

import { expect, test } from "bun:test";

import { address, parse, render } from "../../page/markdown.js";

const BOUND_MS = 5_000;

function written(node) {
  if (typeof node === "string") return node.replaceAll("<", "&lt;");
  const attrs = ["class", "start", "href"].filter((name) => node.attrs[name]).map((name) => ` ${name}=${node.attrs[name]}`);
  return `<${node.tag}${attrs.join("")}>${node.children.map(written).join("")}</${node.tag}>`;
}

const html = (text) => parse(text).map(written).join("");

function nodes(tree, found = []) {
  for (const node of tree) {
    if (typeof node === "string") continue;
    found.push(node);
    nodes(node.children, found);
  }
  return found;
}

test("what agents write is read as they mean it", () => {
  const cases = [
    ["plain", "<p>plain</p>"],
    ["one\ntwo\n\nthree", "<p>one<br></br>two</p><p>three</p>"],
    ["**b** *i* _u_ ~~s~~ ***both*** `c*d*`", "<p><strong>b</strong> <em>i</em> <em>u</em> <del>s</del> <strong><em>both</em></strong> <code>c*d*</code></p>"],
    ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
    ["snake_case_word, 2 * 3 * 4, a ** b", "<p>snake_case_word, 2 * 3 * 4, a ** b</p>"],
    ["\\*not\\* `` a`b ``", "<p>*not* <code>a`b</code></p>"],
    ["# One\n## Two #\n####### seven", "<h2>One</h2><h3>Two</h3><p>####### seven</p>"],
    ["a\n\n---\n* * *", "<p>a</p><hr></hr><hr></hr>"],
    ["> a\n> > b\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
    ["- a\n- b\n  - c\n    1. d\n- e", "<ul><li>a</li><li>b<ul><li>c<ol><li>d</li></ol></li></ul></li><li>e</li></ul>"],
    ["3. c\n4. d", "<ol start=3><li>c</li><li>d</li></ol>"],
    ["1. a\n\n2. b\n\ntext\n\n3. c", "<ol><li>a</li><li>b</li></ol><p>text</p><ol start=3><li>c</li></ol>"],
    ["1. a\n\n   more\n2. b", "<ol class=loose><li>a<p>more</p></li><li>b</li></ol>"],
    ["- [x] did\n- [ ] will", "<ul><li>☑ did</li><li>☐ will</li></ul>"],
    ["```js\n<b>*x*\n\n  y\n```\nafter", "<pre><code>&lt;b>*x*\n\n  y</code></pre><p>after</p>"],
    ["```\nnot closed yet", "<pre><code>not closed yet</code></pre>"],
    ["- a\n  ```\n  code\n  ```", "<ul><li>a<pre><code>code</code></pre></li></ul>"],
    ["| a | b |\n|---|--:|\n| 1 | `x` \\| y |\nend", "<div class=table><table><thead><tr><th>a</th><th class=right>b</th></tr></thead><tbody><tr><td>1</td><td class=right><code>x</code> | y</td></tr></tbody></table></div><p>end</p>"],
    ["see https://a.example/x_y_z.", "<p>see <a href=https://a.example/x_y_z>https://a.example/x_y_z</a>.</p>"],
    ["[**b**](https://a.example/w_(x)) <mailto:a@b.example>", "<p><a href=https://a.example/w_(x)><strong>b</strong></a> <a href=mailto:a@b.example>a@b.example</a></p>"],
  ];
  for (const [text, expected] of cases) expect(html(text)).toBe(expected);
});

test("a stranger's HTML is text, and no element but ours is made", () => {
  const hostile = '<script>alert(1)</script><img src=x onerror=alert(1)> **<svg onload=x>** [<b>](https://a.example) `</code><script>`\n\n<iframe src="//evil"></iframe>\n| <style> | b |\n|-|-|\n| <a href=x> | c |';
  const known = new Set("p strong em del code pre a br hr ul ol li blockquote div table thead tbody tr th td h2 h3 h4 h5 h6".split(" "));
  for (const node of nodes(parse(hostile))) expect(known.has(node.tag)).toBe(true);

  // What renders makes elements by those names and text nodes, and nothing else.
  const page = {
    createDocumentFragment: () => page.createElement("#"),
    createElement: (tag) => ({ tag, children: [], attrs: {}, append(child) { this.children.push(child); }, setAttribute(name, value) { this.attrs[name] = value; } }),
    createTextNode: (text) => ({ text }),
  };
  const shown = JSON.stringify(render(parse(hostile), page));
  expect(shown).toContain('{"text":"<script>alert(1)</script><img src=x onerror=alert(1)> "}');
  expect(shown).not.toContain('"tag":"script"');
});

test("links lead to the web and to mail, whatever is tried", () => {
  for (const target of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "\u0001javascript:alert(1)", "java\tscript:alert(1)", "data:text/html,<script>", "vbscript:x", "file:///etc/passwd", "blob:https://a/b", "//evil.example", "/path", "#x", "about:blank", "ftp://a"]) {
    expect(address(target)).toBe(null);
    for (const text of [`[x](${target})`, `![x](${target})`, `<${target}>`, `[x](<${target}>)`, `[[x](${target})](https://a.example)`]) {
      for (const node of nodes(parse(text))) if (node.attrs.href) expect(node.attrs.href).toMatch(/^(https?:\/\/|mailto:)/);
    }
  }
  const [link] = nodes(parse("[your bank](https://evil.example)")).filter((node) => node.tag === "a");
  expect(link.attrs).toEqual({ href: "https://evil.example/", title: "https://evil.example/", rel: "noopener noreferrer nofollow", target: "_blank" });
});

test("hostile texts cost little and nest only so deep", () => {
  const long = 1 << 18;
  const fill = (piece) => piece.repeat(Math.floor(long / piece.length));
  const texts = {
    "one line of 1 MB": "x".repeat(1 << 20),
    "stars of 1 MB": "*a ".repeat(1 << 19),
    "10,000 quotes": ">".repeat(10_000),
    "10,000 quotes with blanks": "> ".repeat(10_000),
    "10,000 lists": "- ".repeat(10_000) + "x",
    "10,000 brackets": "[".repeat(10_000) + "x" + "](https://a)".repeat(10_000),
    "10,000 times bold": "**a ".repeat(10_000) + " b**".repeat(10_000),
    "10,000 times bold and italic": "**a *b ".repeat(10_000) + " c* d**".repeat(10_000),
    "ever deeper entries": Array.from({ length: 700 }, (_, at) => `${" ".repeat(at)}- x`).join("\n"),
    "ever longer ticks": Array.from({ length: 700 }, (_, at) => "`".repeat(at + 1)).join("a"),
  };
  for (const piece of ["*a ", "*a**b", "_a ", "~~a", "`a``b", "[a](", "[a](b", "![", "<https://", "https://a.", "\\*", "|", "a|b\n", "|-|\n", "- a\n", "- a\n\n", "1. a\n  b\n", "> a\n", "# #", "\n", " ", "- ", "_ ", "```\n", "~~~a\n"]) {
    texts[`much ${JSON.stringify(piece)}`] = fill(piece);
  }

  for (const [name, text] of Object.entries(texts)) {
    const begun = performance.now();
    const tree = parse(text);
    const took = performance.now() - begun;
    if (took > BOUND_MS) throw new Error(`${name}: ${took} ms`);
    expect([name, depth(tree) <= 64]).toEqual([name, true]);
  }
});

test("nothing that was said gets lost", () => {
  const pieces = ["a", "word ", "*", "**", "_", "`", "```\n", "~~", "[x](", ")", "https://a.example/", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "\\", "  ", "<b>"];
  let seed = 7;
  const next = (below) => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648) % below;
  for (let round = 0; round < 3_000; round += 1) {
    const text = Array.from({ length: next(40) }, () => pieces[next(pieces.length)]).join("");
    const letters = (said) => said.replace(/https?:\S*|[^a-z]/g, "").replaceAll("x", "");
    const shown = nodes([{ tag: "", attrs: {}, children: parse(text) }]).flatMap((node) => node.children.filter((child) => typeof child === "string"));
    const language = nodes(parse(text)).map((node) => node.attrs["data-language"] ?? "").join("");
    const all = [...letters(shown.join("").replace(/https?:\S*/g, "")), ...letters(language)].length;
    const least = (text.match(/word /g) ?? []).length * 4;
    if (all < least && !/https/.test(text) && !/`/.test(text) && !text.includes("|")) throw new Error(JSON.stringify(text));
  }
});

function depth(tree) {
  let deepest = 0;
  const pending = tree.map((node) => [node, 1]);
  while (pending.length) {
    const [node, at] = pending.pop();
    deepest = Math.max(deepest, at);
    if (typeof node !== "string") for (const child of node.children) pending.push([child, at + 1]);
  }
  return deepest;
}
