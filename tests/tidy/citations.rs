//! Citations in comments: every page, section and seed that the source names can be found in this repository.
//!
//! A citation is the path of a page from the root, with or without a section (`docs/design/wire.md §1.1`, or the words of
//! a heading in quotes), or a section of a seed (`seed 003 §8.4, §8.5`), which is a heading of `docs/seeds.md`.

use std::collections::BTreeMap;

use crate::check;
use crate::pages::Page;
use crate::source::{MEMBERS, files_below, root};

/// The page with a heading for each section of each seed.
const SEEDS: &str = "docs/seeds.md";

/// What a line of comment begins with.
const MARKS: [&str; 6] = ["//!", "///", "//", "--", "*/", "*"];

/// Lines of comment that follow one another, without their marks.
struct Comment {
    /// Of its first line, from one.
    line: usize,
    text: String,
}

/// The comments of a file of Rust, TypeScript or SQL that have lines of their own.
fn comments(text: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut follows = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let Some(said) = MARKS.iter().find_map(|mark| line.strip_prefix(mark)) else {
            follows = false;
            continue;
        };

        match found.last_mut().filter(|_| follows) {
            Some(comment) => {
                comment.text.push(' ');
                comment.text.push_str(said.trim());
            }
            None => found.push(Comment {
                line: index + 1,
                text: said.trim().to_owned(),
            }),
        }
        follows = true;
    }
    found
}

/// Something that a comment points at.
#[derive(Debug, PartialEq, Eq)]
enum Citation {
    /// A page, and the sections of it.
    Page { path: String, sections: Vec<Section> },
    /// A seed, and the sections of it.
    Seed { number: String, sections: Vec<Section> },
    /// A seed that is named in a way that nobody can look up.
    Bare(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Section {
    /// `§8.4`.
    Number(String),
    /// `"Crash rules"`.
    Heading(String),
}

/// The sections that `text` begins with: ` "Words"`, ` §1`, ` §1.2, §3`.
fn sections(text: &str) -> Vec<Section> {
    let mut found = Vec::new();
    let mut rest = text.strip_prefix('`').unwrap_or(text);
    if let Some((heading, _)) = rest.strip_prefix(" \"").and_then(|rest| rest.split_once('"')) {
        return vec![Section::Heading(heading.to_owned())];
    }

    while let Some(behind) = [" §", ", §", "–§"].iter().find_map(|before| rest.strip_prefix(before)) {
        let length = behind
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(behind.len());
        found.push(Section::Number(behind[..length].trim_end_matches('.').to_owned()));
        rest = &behind[length..];
    }
    found
}

/// Pages that `text` names.
fn cited_pages(text: &str) -> Vec<Citation> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let ends = [".md", ".txt"].into_iter().flat_map(|ending| {
        let places = text.match_indices(ending);
        places.map(move |(at, _)| at + ending.len())
    });

    let mut found = Vec::new();
    for end in ends {
        let runs_on = text[end..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let begin = text[..end]
            .rfind(|c| !is_part(c))
            .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));

        let path = &text[begin..end];
        let is_file = !path.starts_with('.') && !path.starts_with("//");
        if is_file && !runs_on {
            found.push(Citation::Page {
                path: path.to_owned(),
                sections: sections(&text[end..]),
            });
        }
    }
    found
}

/// Seeds that `text` names: `seed 003 §8.4`, or, which is a fault, the number alone.
fn cited_seeds(text: &str) -> Vec<Citation> {
    let mut found = Vec::new();
    for number in ["000", "001", "002", "003", "004"] {
        for (at, _) in text.match_indices(number) {
            let (before, behind) = (&text[..at], &text[at + number.len()..]);
            let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || "_,.-".contains(c))
                && !behind.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            if !is_word {
                continue;
            }

            if before.ends_with("seed ") || before.ends_with("Seed ") {
                found.push(Citation::Seed {
                    number: number.to_owned(),
                    sections: sections(behind),
                });
            } else if behind.starts_with("'s") || behind.starts_with(" §") {
                found.push(Citation::Bare(number.to_owned()));
            }
        }
    }
    found
}

/// The headings of the pages that were asked for.
#[derive(Default)]
struct Headings(BTreeMap<String, Option<Vec<String>>>);

impl Headings {
    /// Those of the page at `path`; none if there is no such file.
    fn of(&mut self, path: &str) -> Option<&[String]> {
        let read = || {
            let is_there = root().join(path).is_file();
            is_there.then(|| Page::read(path).headings().map(str::to_owned).collect())
        };
        self.0.entry(path.to_owned()).or_insert_with(read).as_deref()
    }

    /// Why `citation` leads nowhere.
    fn fault(&mut self, citation: &Citation) -> Option<String> {
        match citation {
            Citation::Page { path, sections } => {
                let Some(headings) = self.of(path) else {
                    return Some(format!("`{path}` is no file below the root"));
                };
                let lost = sections.iter().find(|section| !has(headings, section))?;
                Some(format!("`{path}` has no section {}", name(lost)))
            }
            Citation::Seed { number, sections } => {
                let headings = self.of(SEEDS)?;
                let is_there = |section: &Section| match section {
                    Section::Number(section) => {
                        let begin = format!("{number} §{section} ");
                        headings.iter().any(|heading| heading.starts_with(&begin))
                    }
                    Section::Heading(_) => false,
                };
                let lost = sections.iter().find(|section| !is_there(section))?;
                Some(format!("{SEEDS} has no section {} of seed {number}", name(lost)))
            }
            Citation::Bare(number) => Some(format!("say `seed {number} §…` in place of {number}")),
        }
    }
}

fn name(section: &Section) -> String {
    match section {
        Section::Number(number) => format!("§{number}"),
        Section::Heading(words) => format!("\"{words}\""),
    }
}

/// Whether one of `headings` is `section`. Numbers stand before the words of a heading.
fn has(headings: &[String], section: &Section) -> bool {
    headings.iter().any(|heading| match section {
        Section::Number(number) => {
            let behind = heading.strip_prefix(number.as_str());
            behind.is_some_and(|behind| behind.starts_with(". ") || behind.starts_with(' '))
        }
        Section::Heading(words) => heading.contains(words.as_str()),
    })
}

#[test]
fn citations_resolve() {
    let mut headings = Headings::default();
    let mut faults = Vec::new();
    let files = MEMBERS
        .iter()
        .flat_map(|member| files_below(member, &[".rs", ".ts", ".sql"]));
    for (path, text) in files {
        for comment in comments(&text) {
            let cited = cited_pages(&comment.text).into_iter().chain(cited_seeds(&comment.text));
            let found = cited.filter_map(|citation| headings.fault(&citation));
            faults.extend(found.map(|why| format!("{path}:{}: {why}", comment.line)));
        }
    }
    check("what comments cite is in this repository", faults);
}

#[test]
fn citations_are_read_over_lines() {
    let text = "//! Source: `docs/design/wire.md`\n//! \"Event\"; seed 003 §8.1, §8.5.\nfn f() {}\n// See 001 §4, https://x.y/z.md, `{page}.md`.\n";
    let found: Vec<Vec<Citation>> = comments(text)
        .iter()
        .map(|comment| {
            let pages = cited_pages(&comment.text);
            pages.into_iter().chain(cited_seeds(&comment.text)).collect()
        })
        .collect();

    let number = |number: &str| Section::Number(number.to_owned());
    let page = Citation::Page {
        path: "docs/design/wire.md".to_owned(),
        sections: vec![Section::Heading("Event".to_owned())],
    };
    let seed = Citation::Seed {
        number: "003".to_owned(),
        sections: vec![number("8.1"), number("8.5")],
    };
    assert_eq!(found, [vec![page, seed], vec![Citation::Bare("001".to_owned())]]);

    let headings = ["8.4 Order".to_owned(), "Crash rules".to_owned()];
    assert!(has(&headings, &number("8.4")) && !has(&headings, &number("8")));
    assert!(has(&headings, &Section::Heading("Crash".to_owned())));
}
