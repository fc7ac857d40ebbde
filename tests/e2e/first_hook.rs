//! `docs/first-hook.md`: every command of its page, as it stands there, and how long the page takes.

use std::path::Path;
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock};
use shared::process::free_port;
use tests::command::{PATIENCE, nexus, start};
use tests::eventually::eventually;
use tests::world::root;

use crate::pages::fence::fences;

/// What the page promises, typing and reading included; the machine's share is a small part of it.
const FIVE_MINUTES: Duration = Duration::from_mins(5);

/// The commands of the page's `sh` blocks, in order, as words.
fn commands() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(root().join("docs/first-hook.md")).expect("the page");
    let mut blocks = fences(&page).expect("the page's blocks");
    blocks.retain(|fence| fence.language == "sh");
    let lines = blocks.iter().flat_map(|fence| fence.text.lines());
    lines.filter(|line| line.starts_with("nexus ")).map(words).collect()
}

/// The words of a line as a shell reads it: quotes, and comments behind ` #`.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        if number % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }

    words.remove(0);
    words
}

async fn came_up(directory: &Path) {
    eventually("nexus up", PATIENCE, async || {
        let text = std::fs::read_to_string(directory.join("up.out")).unwrap_or_default();
        if text.contains("nexus tail") { Ok(()) } else { Err(text) }
    })
    .await;
}

/// Waits until the pushed hook is in force, which takes a moment: sends events until one fires it.
async fn in_force(directory: &Path, server: &str) {
    let mut number = 0;
    eventually("the pushed hook is in force", PATIENCE, async || {
        number += 1;
        let id = format!("local:probe-{number}");
        let sent = nexus(directory, &["--server", server, "send", "hello again", "--id", &id]).await;

        let traced = nexus(directory, &["--server", server, "trace", &id, "--wait", "5"]).await;
        if traced.out.contains("greet") {
            Ok(())
        } else {
            Err(format!("{sent:?} {traced:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_hook_is_made_tested_pushed_and_seen_in_a_trace() {
    let directory = tempfile::Builder::new()
        .prefix("nexus-test-")
        .tempdir()
        .expect("a directory");
    let here = directory.path();
    let begun = SystemClock.monotonic();
    let init = nexus(here, &["init"]).await;

    assert_eq!(init.code, Some(0), "{init:?}");

    let ports = [
        free_port().expect("a port").to_string(),
        free_port().expect("a port").to_string(),
    ];
    let _up = start(here, "up", &["up", "--nats-port", &ports[0], "--http-port", &ports[1]]);
    came_up(here).await;
    let server = format!("nats://127.0.0.1:{}", ports[0]);

    let up = SystemClock.monotonic();

    for words in commands() {
        let mut arguments = vec!["--server", server.as_str()];
        arguments.extend(words.iter().map(String::as_str));
        let done = nexus(here, &arguments).await;

        assert_eq!(done.code, Some(0), "nexus {words:?}: {}{}", done.out, done.err);

        let expected = match (words[0].as_str(), words.get(1).map_or("", String::as_str)) {
            ("hook", "new") => "drafts/greet.ts",
            ("hook", "test") if words.iter().any(|word| word == "good bye") => "outcome  passes",
            ("hook", "test") => "outcome  fires",
            ("hook", "backtest") => "fires    1 (",
            ("hook", "push") => "greet is active",
            ("hook", "list") => "greet",
            ("hook", "logs") => "fired",
            ("hook", "disable") => "greet is disabled: enough greeting",
            ("trace", _) => "greet",
            ("send", _) => "local:",
            (other, _) => panic!("a command that the story does not know: {other}"),
        };

        assert!(
            done.out.contains(expected),
            "`{expected}` of nexus {words:?} in\n{}{}",
            done.out,
            done.err
        );

        if words.starts_with(&["hook".to_owned(), "push".to_owned()]) {
            in_force(here, &server).await;
        }
    }

    let done = SystemClock.monotonic();
    let (starting, page) = (up.duration_since(begun), done.duration_since(up));
    println!("`nexus init` and `nexus up` took {starting:?}, the commands of the page {page:?}");

    assert!(starting + page < FIVE_MINUTES, "{starting:?} and {page:?}");

    let down = nexus(here, &["down"]).await;
    assert_eq!(down.code, Some(0), "{down:?}");
}
