//! The documentation: the fenced blocks of README.md and docs/*.md, run and checked from the page itself.
//!
//! | a block | is |
//! | --- | --- |
//! | `sh` | run, in the page's order, in a directory of the page's own, made by `nexus init`; every command ends with exit code 0 |
//! | `sh up` | the same, with `nexus up` in the page's directory |
//! | `sh stays="text"` | started, and goes on until the page ends; the next block follows once it has printed the text |
//! | `output` | compared with what the block before has printed, without numbers |
//! | `ts`, `toml`, `yaml` with `file="path"`, `append="path"` | written where it says, and checked there |
//! | `toml`, `yaml as="personas.yaml"` | checked by `nexus config check` |
//! | `ts` | a whole hook, which `nexus hook test` runs upon a message |
//! | `ts loads` | the same for other events: it has to load |
//! | `ts body` | the same for lines of a hook |
//! | `json` | parsed: one value, or one a line |
//! | `norun="reason"` | left out |

mod checks;
pub(crate) mod fence;
mod terminal;

use std::path::{Path, PathBuf};

use shared::clock::{Clock as _, SystemClock};
use tests::world::root;

use fence::{Fence, fences, missing};
use terminal::Terminal;

/// Every page: its path from the root of the repository, and its text.
fn pages() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(root().join("docs")).expect("the pages");
    let listed = entries.map(|entry| entry.expect("a page").path());
    let mut paths: Vec<PathBuf> = listed
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    paths.push(root().join("README.md"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> (String, String) {
    let text = std::fs::read_to_string(path).expect("a page");
    let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
    (name, text)
}

/// Runs the blocks of one page in order; returns what is wrong with it.
async fn faults_of(name: &str, text: &str) -> Vec<String> {
    let fences = match fences(text) {
        Ok(fences) => fences,
        Err(why) => return vec![format!("{name}: {why}")],
    };
    if fences.is_empty() {
        return Vec::new();
    }

    let badly_said: Vec<String> = fences
        .iter()
        .flat_map(|fence| {
            fence
                .faults()
                .into_iter()
                .map(|fault| format!("{name}:{}: {fault}", fence.line))
        })
        .collect();

    if !badly_said.is_empty() {
        return badly_said;
    }

    let mut terminal = match Terminal::open(text.contains("target/debug")).await {
        Ok(terminal) => terminal,
        Err(why) => return vec![format!("{name}: {why}")],
    };
    let mut faults = Vec::new();

    let mut printed = String::new();
    for fence in &fences {
        if let Some(reason) = fence.attribute("norun") {
            println!("{name}:{}: not run: {reason}", fence.line);
            continue;
        }

        match block(&mut terminal, fence, &printed).await {
            Ok(said) => printed = said.unwrap_or(printed),
            Err(why) => {
                faults.push(format!("{name}:{}: {why}", fence.line));
                // What follows builds on it.
                break;
            }
        }
    }

    if let Err(why) = terminal.close().await {
        faults.push(format!("{name}: {why}"));
    }

    faults
}

/// Runs or checks one block; returns what it printed, if it is one of commands.
async fn block(terminal: &mut Terminal, fence: &Fence, before: &str) -> Result<Option<String>, String> {
    if fence.attribute("output").is_some() {
        return match missing(&fence.text, before) {
            Some(line) => Err(format!("`{line}` is not what the block before has printed:\n{before}")),
            None => Ok(None),
        };
    }

    if fence.attribute("up").is_some() {
        terminal.up().await?;
    }

    match (fence.language.as_str(), fence.attribute("stays")) {
        ("sh", Some(text)) => terminal.stay(&fence.text, text).await.map(|()| Some(String::new())),
        ("sh", None) => terminal.run(&fence.text).await.map(Some),
        _ => checks::check(terminal, fence).await.map(|()| None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_block_of_every_page_runs() {
    let mut faults = Vec::new();
    for (name, text) in pages() {
        let begun = SystemClock.monotonic();
        faults.extend(faults_of(&name, &text).await);
        let took = SystemClock.monotonic().saturating_duration_since(begun);
        println!("{name}: {} ms", took.as_millis());
    }
    faults.extend(checks::hooks(&pages()).await);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
