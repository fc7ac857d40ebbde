//! Which sources read the read model, judged by their text. *Pure.*
//!
//! To read, a script needs `search`, or a database from a module whose name contains `sqlite`. A source that may load a
//! module, or make code, by a name that its text does not show cannot be judged, and counts as one that reads.

/// Texts of sources that read, or that reach for something by a name that is made at run time. The constructor of a function
/// makes functions of texts.
const READING: [&str; 5] = ["dbPath", "search", "sqlite", "ctx[", ".constructor"];

/// Words that load modules or make code by names that are made at run time.
const HIDING: [&str; 6] = [
    "require",
    "createRequire",
    "getBuiltinModule",
    "eval",
    "Function",
    "Reflect",
];

/// Words that may follow a value in the same line.
const BEHIND_A_VALUE: [&str; 4] = ["as", "satisfies", "in", "instanceof"];

/// Objects that have the words of [`HIDING`] as members.
const OWNERS: [&str; 6] = ["globalThis", "global", "self", "process", "Bun", "module"];

/// Modules that load others, or make code.
const LOADERS: [&str; 4] = ["module", "node:module", "vm", "node:vm"];

/// Returns whether `source` reads the read model, or cannot be judged.
pub(super) fn reads_model(source: &str) -> bool {
    READING.iter().any(|text| source.contains(text)) || hides_a_name(source) || escapes_a_letter(source)
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

/// Returns the words of `source`, each with the text after it.
fn words(source: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = source;
    std::iter::from_fn(move || {
        let begun = &rest[rest.find(is_part)?..];
        let end = begun.find(|c| !is_part(c)).unwrap_or(begun.len());
        let (word, after) = begun.split_at(end);
        rest = after;
        Some((word, after))
    })
}

/// Returns whether a module may be loaded, or code made, by a name that `source` does not show.
fn hides_a_name(source: &str) -> bool {
    words(source).any(|(word, rest)| {
        let after = rest.trim_start();
        match word {
            "import" => after.starts_with(['(', '.', '/']) || hides_a_module(after),
            "from" => after.starts_with('/') || hides_a_module(after),
            // In a class it is a method; in the sentence of a comment, another word follows.
            "constructor" => !after.starts_with('(') && !after.starts_with(is_part),
            owner if OWNERS.contains(&owner) => after.starts_with('[') || after.starts_with("?.["),
            other => HIDING.contains(&other) && !is_in_sentence(rest),
        }
    })
}

/// Returns whether another word follows in the same line, as in the sentence of a comment, and not one that may follow a value
/// (`require as any`).
fn is_in_sentence(rest: &str) -> bool {
    let line = rest.trim_start_matches([' ', '\t']);
    let next = line.split(|c| !is_part(c)).next().unwrap_or_default();
    !next.is_empty() && !BEHIND_A_VALUE.contains(&next)
}

/// Returns whether `text` begins with the name of a module whose code the source does not show: one that loads others, a file, a
/// text that is code itself (`data:`), or a name that contains an escape, as `"bun:sq\lite"` is a name too.
fn hides_a_module(text: &str) -> bool {
    let Some(quote) = text.chars().next().filter(|first| matches!(first, '"' | '\'')) else {
        return false;
    };
    let name = text[1..].split(quote).next().unwrap_or_default();
    let is_built_in = name.starts_with("node:") || name.starts_with("bun:");
    let is_elsewhere = name.starts_with(['.', '/']) || (name.contains(':') && !is_built_in);
    name.contains('\\') || LOADERS.contains(&name) || is_elsewhere
}

/// Returns whether a letter or digit is written as an escape, which hides a name and has no other use.
fn escapes_a_letter(source: &str) -> bool {
    let mut escapes = source.split('\\').skip(1);
    escapes.any(|after| escaped_char(after).is_some_and(|c| c.is_ascii_alphanumeric()))
}

/// Returns the character of the escape by number of which `after` is the text behind the backslash.
fn escaped_char(after: &str) -> Option<char> {
    let digits = if let Some(rest) = after.strip_prefix("u{") {
        rest.split('}').next()?
    } else if let Some(rest) = after.strip_prefix('u') {
        rest.get(..4)?
    } else {
        after.strip_prefix('x')?.get(..2)?
    };
    char::from_u32(u32::from_str_radix(digits, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_or_cannot_be_judged_counts_as_reading() {
        for source in [
            "new Database(ctx.dbPath)",
            "await ctx.search('x')",
            "import { Database } from 'bun:sqlite';",
            "import Database from \"better-sqlite3\";",
            "ctx['db' + 'Path']",
            "const module = await import(name);",
            "const module = await import (name);",
            "import/* */('a')",
            "import.meta.require",
            "require ('bun:' + name)",
            "const load = require;",
            "[require][0](name)",
            "const load = require\nload('bun:' + name)",
            "const load = require as any; load('bun:' + name)",
            "const load = eval satisfies unknown;",
            "eval\n(text)",
            "new Function (text)",
            "process.getBuiltinModule(name)",
            "globalThis['ev' + 'al'](text)",
            "process?.['getBuiltin' + 'Module'](name)",
            "Reflect.get(globalThis, name)",
            "const AsyncFunction = (async () => {}).constructor; AsyncFunction(text)",
            "const { constructor: Made } = () => {};",
            "(() => {})['constructor'](text)",
            "import { runInThisContext } from 'node:vm';",
            "import * as loader from \"module\";",
            "import { Database } from \"bun:sq\\lite\";",
            "import 'bun:sq\\lite';",
            "export * from/* */'bun:sq\\lite';",
            "import read from 'data:text/javascript;base64,ZXhwb3J0IGRlZmF1bHQgMQ==';",
            "import 'file:///srv/read.ts';",
            "import read from './reads';",
            "export * from \"/srv/reads.ts\";",
            // Whether it is of types alone cannot be told from a word in a comment.
            "import type { A } from \"./a\";",
            "module['requi' + 're'](name)",
            "\\u0072equire(name)",
            "\\u{72}equire(name)",
            "['e\\x76al']",
        ] {
            assert!(reads_model(source), "{source}");
        }
    }

    #[test]
    fn what_loads_and_makes_nothing_does_not() {
        for source in [
            "export default ({ event }) => ({ fire: event.content === 'caf\\u00e9' });",
            "// Answers that require an approval are not ours.\nexport default () => ({ fire: true });",
            "// The evaluation of a retrieval is a function of the event.\nexport default function (ctx) { return ctx; }",
            "import { join } from 'node:path';\nimport { format } from \"date-fns\";\nimport { hash } from 'bun';",
            "/// <reference path=\"./nexus.d.ts\" />\nexport default ({ event }) => ({ fire: event.from === 'a:b' });",
            "class Own extends Error { constructor() { super('own'); } }\nglobalThis.count = 0;\nconst limit = process.memoryUsage();",
            "// The constructor of a module, of a process and of a virtual machine (vm).\nexport default () => ({ fire: true });",
            "const red = '\\x1b[31m' + \"\\n\";",
            "Array.from('a\\n')",
        ] {
            assert!(!reads_model(source), "{source}");
        }
    }
}
