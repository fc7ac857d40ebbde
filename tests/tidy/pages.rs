//! The pages: links lead somewhere, the book has every page, paths that are named exist, words that are explained are used.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::check;
use crate::source::{MEMBERS, files_below, read, root};

/// Top folders of the repository: a path that begins with one of them is taken for a file of ours.
const FOLDERS: [&str; 11] = [
    "adapter-svc",
    "broker-svc",
    "cli",
    "delivery-svc",
    "deploy",
    "docs",
    "hook-svc",
    "k8s",
    "scheduler-svc",
    "shared",
    "tests",
];

/// A Markdown page.
pub(crate) struct Page {
    /// Relative to the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Page {
    /// The page at `path` below the root.
    pub(crate) fn read(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: read(&root().join(path)),
        }
    }

    /// Lines outside of fenced blocks, numbered from one.
    pub(crate) fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut is_fenced = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_fenced ^= is_fence;
            (!is_fenced && !is_fence).then_some((index + 1, line))
        })
    }

    /// Its headings, without their marks.
    pub(crate) fn headings(&self) -> impl Iterator<Item = &str> {
        self.prose()
            .filter(|(_, line)| line.starts_with('#'))
            .map(|(_, line)| line.trim_start_matches('#').trim())
    }

    /// Targets of its links, with their lines.
    fn links(&self) -> Vec<(usize, &str)> {
        let mut found = Vec::new();
        for (number, line) in self.prose() {
            for part in line.split("](").skip(1) {
                if let Some((target, _)) = part.split_once(')') {
                    found.push((number, target));
                }
            }
        }

        found
    }

    /// What stands in backticks, with its line.
    pub(crate) fn quoted(&self) -> Vec<(usize, &str)> {
        let mut found = Vec::new();
        for (number, line) in self.prose() {
            found.extend(line.split('`').skip(1).step_by(2).map(|text| (number, text)));
        }
        found
    }
}

/// Every page of the repository: those of `docs`, and those at the root.
pub(crate) fn pages() -> Vec<Page> {
    let entries = std::fs::read_dir(root()).expect("list the root");
    let names = entries.map(|entry| entry.expect("folder entry").file_name().to_string_lossy().into_owned());
    let mut paths: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    paths.extend(files_below("docs", &[".md"]).into_iter().map(|(path, _)| path));
    paths.iter().map(|path| Page::read(path)).collect()
}

/// `path` as seen from the page at `from`, without `..`; relative to the root.
fn resolved(from: &str, path: &str) -> PathBuf {
    let joined = Path::new(from).parent().unwrap_or(Path::new("")).join(path);
    joined.components().fold(PathBuf::new(), |mut whole, part| {
        if part == Component::ParentDir {
            whole.pop();
        } else {
            whole.push(part);
        }
        whole
    })
}

/// The anchor that a heading gets.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.collect::<String>().to_lowercase()
}

/// Why `target`, a link of `page`, leads nowhere.
fn broken(page: &Page, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }

    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        PathBuf::from(&page.path)
    } else {
        resolved(&page.path, path)
    };
    if !root().join(&file).exists() {
        return Some(format!("`{target}`: no such file"));
    }

    let is_page = file.extension().is_some_and(|ending| ending == "md");
    if anchor.is_empty() || !is_page {
        return None;
    }

    let there = Page::read(&file.to_string_lossy());
    let is_there = there.headings().any(|heading| slug(heading) == anchor);
    (!is_there).then(|| format!("`{target}`: no such heading"))
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    for page in pages() {
        for (number, target) in page.links() {
            faults.extend(broken(&page, target).map(|why| format!("{}:{number}: {why}", page.path)));
        }
    }
    check("links of pages lead to files and headings", faults);
}

/// The pages that `index` links, relative to the root.
fn linked(index: &Page) -> BTreeSet<PathBuf> {
    let targets = index.links().into_iter().map(|(_, target)| target);
    targets
        .map(|target| resolved(&index.path, target.split('#').next().unwrap_or_default()))
        .collect()
}

#[test]
fn indexes_name_every_page() {
    let mut faults = Vec::new();
    let all = files_below("docs", &[".md"]);
    let is_page = |path: &&String| !path.ends_with("SUMMARY.md");
    let paths: Vec<&String> = all.iter().map(|(path, _)| path).filter(is_page).collect();

    let book = linked(&Page::read("docs/SUMMARY.md"));
    let missing = paths.iter().filter(|path| !book.contains(Path::new(path)));
    faults.extend(missing.map(|path| format!("docs/SUMMARY.md: does not link {path}")));

    // Each folder's README links the pages beside it, and the README of each folder below.
    for index in paths.iter().filter(|path| path.ends_with("README.md")) {
        let links = linked(&Page::read(index));
        let folder = Path::new(index).parent();
        let beside = |path: &Path| path.parent() == folder && path != Path::new(index);
        let below = |path: &Path| path.ends_with("README.md") && path.parent().and_then(Path::parent) == folder;

        let owed = paths
            .iter()
            .filter(|path| beside(Path::new(path)) || below(Path::new(path)));
        let missing = owed.filter(|path| !links.contains(Path::new(path)));
        faults.extend(missing.map(|path| format!("{index}: does not link {path}")));
    }

    check("the book and each folder's README link every page", faults);
}

#[test]
fn paths_that_pages_name_exist() {
    let mut faults = Vec::new();
    for page in pages() {
        for (number, text) in page.quoted() {
            let path = text.trim_end_matches('/');
            let is_ours = path.split_once('/').is_some_and(|(first, _)| FOLDERS.contains(&first));
            let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            if is_ours && is_plain && !root().join(path).exists() {
                faults.push(format!("{}:{number}: `{text}` does not exist", page.path));
            }
        }
    }
    check("pages name files that exist", faults);
}

/// Beginnings of paths that only one machine has.
const MACHINE_PATHS: [&str; 3] = ["/work/", "/root/", "/tmp/nexus"];

#[test]
fn pages_name_no_path_of_one_machine() {
    let mut faults = Vec::new();
    for page in pages() {
        for (number, line) in page.text.lines().enumerate() {
            let found = MACHINE_PATHS.iter().filter(|path| line.contains(**path));
            faults.extend(found.map(|path| format!("{}:{}: names {path}", page.path, number + 1)));
        }
    }
    check("a page is read on other machines", faults);
}

/// `text` in one case, its words parted by single blanks.
fn plain(text: &str) -> String {
    let words = text
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").to_lowercase()
}

#[test]
fn words_of_the_glossary_are_used() {
    let glossary = Page::read("docs/glossary.md");
    let rows = glossary.prose().filter(|(_, line)| line.starts_with("| "));
    let terms: Vec<String> = rows
        .filter_map(|(_, line)| line.split('|').nth(1))
        .map(plain)
        .filter(|term| !term.is_empty() && term != "word" && !term.starts_with("--"))
        .collect();
    assert!(terms.len() > 30, "the glossary has only {} terms", terms.len());

    let others = pages().into_iter().filter(|page| page.path != glossary.path);
    let mut used = others.map(|page| plain(&page.text)).collect::<Vec<_>>().join("\n");
    let mut unused: Vec<String> = terms.into_iter().filter(|term| !used.contains(term.as_str())).collect();

    // Most words stand on a page; the source is read for the rest of them.
    if !unused.is_empty() {
        used = MEMBERS
            .iter()
            .flat_map(|member| files_below(member, &[".rs"]))
            .map(|(_, text)| plain(&text))
            .collect();
        unused.retain(|term| !used.contains(term.as_str()));
    }
    check(
        "words of docs/glossary.md are used by a source or another page",
        unused.into_iter().map(|term| format!("docs/glossary.md: {term}")),
    );
}

#[test]
fn anchors_are_made_as_readers_expect() {
    assert_eq!(slug("Webhooks: `POST /hooks/{source}`"), "webhooks-post-hookssource");
    assert_eq!(
        resolved("docs/adr/README.md", "../seeds.md"),
        Path::new("docs/seeds.md")
    );
    assert_eq!(resolved("README.md", "docs/hooks.md"), Path::new("docs/hooks.md"));
    assert_eq!(plain("/// A *dead\n/// letter*"), "a dead letter");
}

#[test]
fn the_contract_names_every_entry_of_the_ledger() {
    let page = read(&root().join("docs/design/sessions.md"));
    let named = |name: &str| page.contains(&format!("`{name}`"));

    let golden = std::fs::read_dir(root().join("tests/golden")).expect("tests/golden");
    let files = golden.map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned());
    let entries: BTreeSet<String> = files
        .filter_map(|file| {
            let entry = file.strip_prefix("ledger-")?.split(['.', '-']).next()?;
            Some(entry.to_owned())
        })
        .collect();
    assert!(entries.len() > 10, "{entries:?}");

    let source = read(&root().join("shared/src/model/ledger/drop_reason.rs"));
    let reasons = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""))
        .map(|(_, rest)| rest.trim_end_matches("\",").to_owned());

    let missing = entries.into_iter().chain(reasons).filter(|name| !named(name));
    check(
        "docs/design/sessions.md names every ledger entry and every reason of a drop",
        missing.map(|name| format!("docs/design/sessions.md: {name}")),
    );
}
