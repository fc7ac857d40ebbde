//! What every file is like: pure where it says so, named after what it holds, short, whole.

use std::path::Path;

use crate::source::{Source, contains_word, read, root, sources};
use crate::{SERVICES, check};

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
const TERMINAL: &str = "cli/src/output/writer.rs";
const MAX_FILE_LINES: usize = 500;
const MAX_MAIN_LINES: usize = 20;
/// The part of the tests that runs pods, and its lines of code: one that grows is another Kubernetes, which nobody tests.
const KUBELET: &str = "tests/src/kubelet";
const MAX_KUBELET_LINES: usize = 800;

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
fn the_kubelet_of_the_tests_is_small() {
    let sources = sources();
    let files = sources.iter().filter(|source| source.is_in(KUBELET));
    let lines = files.flat_map(Source::shipped_lines);
    let count = lines.filter(|(_, line)| !line.trim().is_empty()).count();
    assert!(count > 0, "{KUBELET}");

    let fault = format!("{KUBELET}: {count} lines of code, at most {MAX_KUBELET_LINES}");
    let faults = (count > MAX_KUBELET_LINES).then_some(fault);
    check("the kubelet of the tests is small", faults);
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
