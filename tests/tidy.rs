//! The invariants of ARCHITECTURE.md that a reader of the source can check, over every Rust file of the workspace.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that run as processes of their own, and therefore share nothing but `shared`.
const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];
const MEMBERS: [&str; 8] = [
    "shared",
    "adapter-svc",
    "hook-svc",
    "broker-svc",
    "delivery-svc",
    "scheduler-svc",
    "cli",
    "tests",
];
/// Crate, and the one room that may name it (a file `room.rs` and the files under `room/`).
const GUARDED_CRATES: [(&str, &str); 4] = [
    ("async_nats", "shared/src/bus"),
    ("sled", "shared/src/store"),
    ("backoff", "shared/src/retry"),
    ("rusqlite", "shared/src/projection"),
];
/// Rooms that are pure whether or not their files say so.
const PURE_ROOMS: [&str; 2] = ["shared/src/model", "shared/src/wire"];
/// What a pure file does not contain outside its tests.
const IMPURE: [&str; 21] = [
    "async fn",
    "async move",
    "async {",
    ".await",
    "tokio::",
    "SystemTime::now",
    "Instant::now",
    "Timestamp::now",
    "Zoned::now",
    "Ulid::generate",
    "rand::",
    "std::fs",
    "std::env",
    "std::process",
    "thread::sleep",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "reqwest::",
    "println!",
    "File::open",
];
/// The one file of the command line that writes to the terminal.
const TERMINAL: &str = "cli/src/output.rs";
const MAX_FILE_LINES: usize = 500;
const MAX_MAIN_LINES: usize = 20;

/// One Rust file of the workspace.
struct Source {
    /// Relative to the root of the repository, with forward slashes.
    path: String,
    text: String,
    /// The text with comments and the insides of literals blanked; line breaks kept.
    code: String,
}

impl Source {
    /// Lines of code outside the trailing `#[cfg(test)]` module, numbered from one.
    fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines()
            .take_while(|(_, line)| !line.trim_start().starts_with("#[cfg(test)]"))
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Whether the file is `room.rs` or lies under `room/`.
    fn is_in(&self, room: &str) -> bool {
        self.path
            .strip_prefix(room)
            .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    fn says_pure(&self) -> bool {
        self.text
            .lines()
            .take_while(|line| line.starts_with("//"))
            .any(|line| line.contains("*Pure.*"))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests lies in the workspace")
        .to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// Every Rust file of every member.
fn sources() -> Vec<Source> {
    let root = root();
    let mut pending: Vec<PathBuf> = MEMBERS.iter().map(|member| root.join(member)).collect();

    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("list {}: {error}", folder.display())) {
            let path = entry.expect("folder entry").path();
            if path.is_dir() && !path.ends_with("target") {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = read(&path);
                let relative = path
                    .strip_prefix(&root)
                    .expect("under the root")
                    .to_string_lossy()
                    .replace('\\', "/");

                found.push(Source {
                    path: relative,
                    code: blank_comments_and_literals(&text),
                    text,
                });
            }
        }
    }

    found.sort_by(|left, right| left.path.cmp(&right.path));
    assert!(
        found.len() >= MEMBERS.len(),
        "the walk found only {} files",
        found.len()
    );

    found
}

/// What ends the stretch of text that is not code.
enum Skipped {
    LineComment,
    BlockComment { depth: usize },
    Quoted { quote: char },
    RawText { hashes: usize },
}

/// Blanks comments and the insides of string and character literals, so that what remains is code.
fn blank_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());

    let mut at = 0;
    while at < chars.len() {
        match skipped_at(&chars, at) {
            Some((skipped, opening)) => {
                let end = end_of(&chars, at + opening, &skipped);
                code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                code.push(chars[at]);
                at += 1;
            }
        }
    }

    code
}

/// Whether something that is not code begins here, and how long its opening is.
fn skipped_at(chars: &[char], at: usize) -> Option<(Skipped, usize)> {
    let next = |ahead: usize| chars.get(at + ahead).copied();
    let after_name = at > 0 && is_name_char(chars[at - 1]);
    match (chars[at], next(1)) {
        ('/', Some('/')) => Some((Skipped::LineComment, 2)),
        ('/', Some('*')) => Some((Skipped::BlockComment { depth: 1 }, 2)),
        ('"', _) => Some((Skipped::Quoted { quote: '"' }, 1)),
        ('r', Some('"' | '#')) if !after_name || chars[at - 1] == 'b' => {
            let hashes = (1..).take_while(|&ahead| next(ahead) == Some('#')).count();
            (next(1 + hashes) == Some('"')).then_some((Skipped::RawText { hashes }, 2 + hashes))
        }
        // A character literal, not a lifetime; others than these two cannot hold a quote that would mislead.
        ('\'', Some('\\')) => Some((Skipped::Quoted { quote: '\'' }, 1)),
        ('\'', Some('"')) if next(2) == Some('\'') => Some((Skipped::Quoted { quote: '\'' }, 1)),
        _ => None,
    }
}

/// The index just behind what began before `at`.
fn end_of(chars: &[char], mut at: usize, skipped: &Skipped) -> usize {
    let mut depth = match skipped {
        Skipped::BlockComment { depth } => *depth,
        Skipped::LineComment | Skipped::Quoted { .. } | Skipped::RawText { .. } => 0,
    };
    while at < chars.len() {
        let next = chars.get(at + 1).copied();
        match skipped {
            Skipped::LineComment if chars[at] == '\n' => return at,
            Skipped::BlockComment { .. } if chars[at] == '/' && next == Some('*') => (depth, at) = (depth + 1, at + 1),
            Skipped::BlockComment { .. } if chars[at] == '*' && next == Some('/') => {
                (depth, at) = (depth - 1, at + 1);
                if depth == 0 {
                    return at + 1;
                }
            }
            Skipped::Quoted { .. } if chars[at] == '\\' => at += 1,
            Skipped::Quoted { quote } if chars[at] == *quote => return at + 1,
            Skipped::RawText { hashes } if chars[at] == '"' => {
                if chars[at + 1..].iter().take_while(|&&c| c == '#').count() >= *hashes {
                    return at + 1 + hashes;
                }
            }
            Skipped::LineComment | Skipped::BlockComment { .. } | Skipped::Quoted { .. } | Skipped::RawText { .. } => {}
        }

        at += 1;
    }

    chars.len()
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether the line contains `word`, and not as a part of a longer name.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let runs_on_before = word.starts_with(is_name_char) && line[..at].ends_with(is_name_char);
        let runs_on_after = word.ends_with(is_name_char) && line[at + word.len()..].starts_with(is_name_char);
        !runs_on_before && !runs_on_after
    })
}

/// Whether the line uses the crate: its name as a whole word, at the head of a path or in a `use`.
fn names_crate(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].trim_end();
        let after = line[at + name.len()..].trim_start();
        let starts_word = !line[..at].ends_with(is_name_char);
        let heads_path = after.starts_with("::") && !before.ends_with("::");
        let imported = before.ends_with("use") && after.starts_with([';', ' ', 'a']);
        starts_word && (heads_path || imported)
    })
}

fn manifest(member: &str) -> toml::Table {
    read(&root().join(member).join("Cargo.toml"))
        .parse()
        .expect("a manifest is TOML")
}

/// Names of everything that a crate depends on, tests included.
fn dependencies(member: &str) -> Vec<String> {
    let manifest = manifest(member);
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .into_iter()
        .filter_map(|section| manifest.get(section)?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

/// Fails with every fault at once.
fn check(rule: &str, faults: impl IntoIterator<Item = String>) {
    let mut listing = String::new();
    for fault in faults {
        write!(listing, "\n  {fault}").expect("write to a string");
    }
    assert!(listing.is_empty(), "{rule}:{listing}");
}

#[test]
fn services_share_nothing_but_shared() {
    let mut faults = Vec::new();
    for member in SERVICES.iter().chain(["shared"].iter()) {
        let strangers = dependencies(member)
            .into_iter()
            .filter(|name| SERVICES.contains(&name.as_str()));
        faults.extend(strangers.map(|name| format!("{member}/Cargo.toml: depends on {name}")));
    }
    check("invariant 1: service crates never depend on each other", faults);
}

#[test]
fn guarded_crates_are_named_in_one_room() {
    let mut faults = Vec::new();
    for (name, room) in GUARDED_CRATES {
        for source in sources().iter().filter(|source| !source.is_in(room)) {
            let uses = source.lines().filter(|(_, line)| names_crate(line, name));
            faults.extend(
                uses.map(|(number, _)| format!("{}:{number}: names {name}, which belongs to {room}", source.path)),
            );
        }

        let owners = MEMBERS.iter().filter(|&&member| member != "shared");
        let declared = owners.filter(|member| dependencies(member).iter().any(|found| found.replace('-', "_") == name));
        faults.extend(declared.map(|member| format!("{member}/Cargo.toml: declares {name}, which belongs to {room}")));
    }

    check("invariant 2: one room names each of these crates", faults);
}

#[test]
fn pure_files_are_pure() {
    let mut faults = Vec::new();
    let sources = sources();

    let pure = |source: &&Source| source.says_pure() || PURE_ROOMS.iter().any(|room| source.is_in(room));
    for source in sources.iter().filter(pure) {
        for (number, line) in source.shipped_lines() {
            let found = IMPURE.iter().filter(|word| contains_word(line, word));
            faults.extend(found.map(|word| format!("{}:{number}: contains {word}", source.path)));
        }
    }

    check(
        "invariant 4: a pure file has no async, clock, randomness, environment or I/O",
        faults,
    );
}

#[test]
fn one_file_of_the_command_line_writes_to_the_terminal() {
    let mut faults = Vec::new();
    let sources = sources();
    let is_other = |source: &&Source| source.path.starts_with("cli/src/") && source.path != TERMINAL;
    for source in sources.iter().filter(is_other) {
        for (number, line) in source.shipped_lines() {
            let is_handle = ["stdout()", "stderr()"].iter().any(|handle| line.contains(handle));
            if is_handle && !line.contains("is_terminal()") {
                faults.push(format!("{}:{number}: writes past {TERMINAL}", source.path));
            }
        }
    }

    check(
        "what strangers wrote is escaped where it is written: one file of the command line writes",
        faults,
    );
}

#[test]
fn services_have_the_same_files() {
    let mut faults = Vec::new();
    for service in SERVICES {
        let folder = root().join(service).join("src");
        let missing = ["main.rs", "lib.rs", "config.rs", "service.rs"]
            .into_iter()
            .filter(|name| !folder.join(name).is_file());
        faults.extend(missing.map(|name| format!("{service}/src/{name}: missing")));

        let lines = read(&folder.join("main.rs")).lines().count();
        if lines > MAX_MAIN_LINES {
            faults.push(format!(
                "{service}/src/main.rs: {lines} lines, at most {MAX_MAIN_LINES}: one call"
            ));
        }
    }

    check("every service has main.rs, lib.rs, config.rs, service.rs", faults);
}

#[test]
fn files_are_named_for_what_they_hold_and_short() {
    let mut faults = Vec::new();
    for source in sources() {
        let path = Path::new(&source.path);
        if path.ends_with("mod.rs") {
            faults.push(format!("{}: name the file after its module", source.path));
        }

        let vague = |part: &std::ffi::OsStr| {
            ["util", "utils", "helpers", "misc"]
                .iter()
                .any(|word| part.to_string_lossy().trim_end_matches(".rs") == *word)
        };

        if path.iter().any(vague) {
            faults.push(format!("{}: name it after what it holds", source.path));
        }

        // Blank lines are free: a function's paragraphs must not cost a file its room.
        let lines = source.text.lines().filter(|line| !line.trim().is_empty()).count();
        if lines > MAX_FILE_LINES {
            faults.push(format!("{}: {lines} lines, at most {MAX_FILE_LINES}", source.path));
        }
    }

    check("files are nouns, and short", faults);
}

#[test]
fn nothing_is_left_undone() {
    let mut faults = Vec::new();
    for source in sources() {
        for (number, line) in source.lines() {
            let found = ["todo!", "unimplemented!", "#[ignore", "#![allow", "#[allow"]
                .into_iter()
                .filter(|word| line.contains(word));
            faults.extend(found.map(|word| format!("{}:{number}: contains {word}", source.path)));
        }
    }

    check(
        "no stubs, no ignored tests, no silenced lints without #[expect(…, reason)]",
        faults,
    );
}

#[test]
fn every_dependency_has_its_reason() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let workspace = manifest(".");
    let declared = workspace["workspace"]["dependencies"]
        .as_table()
        .expect("[workspace.dependencies]");
    let unnamed = declared
        .keys()
        .filter(|name| !MEMBERS.contains(&name.as_str()) && !architecture.contains(&format!("`{name}`")));

    check(
        "ARCHITECTURE.md names every dependency with its reason",
        unnamed.map(|name| format!("Cargo.toml: {name}")),
    );
}

#[test]
fn blanking_keeps_code_and_lines() {
    let text = "let a = \"todo!\"; // async_nats::x\n/* /* sled:: */ */ let c = '\"'; let d = '\\\"'; let r = r#\"x\"y\"#;\nfn f<'a>() {}\n";
    let code = blank_comments_and_literals(text);
    assert_eq!(code.lines().count(), 3);
    assert!(
        !code.contains("todo!") && !code.contains("async_nats") && !code.contains("sled"),
        "{code}"
    );
    assert!(
        code.contains("let c =") && code.contains("let r =") && code.contains("fn f<'a>() {}"),
        "{code}"
    );

    assert!(contains_word("x.await?", ".await") && !contains_word("turn.awaits", ".await"));
    assert!(names_crate("use sled::Db;", "sled") && names_crate("    let db = sled::open(p)?;", "sled"));
    assert!(!names_crate("let backoff = 3;", "backoff") && !names_crate("crate::retry::backoff::x()", "backoff"));
}
