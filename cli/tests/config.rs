//! A configuration file that is named and cannot be read is an error for every command, whatever it does.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue};
use cli::args::Cli;

/// The words of every command that has no further subcommands, with a value for each argument that it needs.
fn leaves(command: &clap::Command, before: &[String]) -> Vec<Vec<String>> {
    let nested: Vec<&clap::Command> = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
        .collect();
    if nested.is_empty() {
        return vec![complete(before.to_vec())];
    }

    let below = nested.into_iter().map(|sub| {
        let words = [before, &[sub.get_name().to_owned()]].concat();
        leaves(sub, &words)
    });

    below.flatten().collect()
}

/// `words` with a value for every argument that is missing.
fn complete(mut words: Vec<String>) -> Vec<String> {
    for _ in 0..5 {
        let line = ["nexus".to_owned()].into_iter().chain(words.iter().cloned());
        let Err(error) = Cli::command().try_get_matches_from(line) else {
            return words;
        };

        let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
            panic!("nexus {words:?}: {error}");
        };
        for argument in missing {
            // `<A>`, `--flag <A>`, `<A|--flag <B>>`: the first will do.
            let first = argument.trim_matches(['<', '>']).split('|').next().unwrap_or_default();
            let mut parts = first.split_whitespace();
            match parts.next() {
                Some(flag) if flag.starts_with("--") => {
                    words.push(flag.to_owned());
                    words.extend(parts.next().map(|_| "1".to_owned()));
                }
                Some("SHELL") => words.push("bash".to_owned()),
                Some("DECISION") => words.push("allow".to_owned()),
                _ => words.push("1".to_owned()),
            }
        }
    }

    panic!("nexus {words:?} wants ever more");
}

fn run(directory: &Path, words: &[String], flag: Option<&Path>, variable: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nexus"));
    command.args(words).current_dir(directory).stdin(Stdio::null());
    if let Some(path) = flag {
        command.arg("--config").arg(path);
    }
    if let Some(path) = variable {
        command.env("NEXUS_CONFIG", path);
    }
    command.output().expect("nexus runs")
}

fn check(directory: &Path, words: &[String], flag: Option<&Path>, variable: Option<&Path>) {
    let ended = run(directory, words, flag, variable);
    let said = String::from_utf8_lossy(&ended.stderr);
    let path = flag.or(variable).expect("one of them").display().to_string();
    let by = if flag.is_some() { "--config" } else { "NEXUS_CONFIG" };

    assert_eq!(ended.status.code(), Some(2), "nexus {words:?} with {by}: {said}");
    assert!(
        said.contains(&format!("{by}: failed to read the configuration {path}")),
        "nexus {words:?}: {said}"
    );
    assert!(ended.stdout.is_empty(), "nexus {words:?} did something first");
}

#[test]
fn every_command_refuses_a_configuration_that_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let (missing, folder, bytes) = (here.join("none.toml"), here.join("folder"), here.join("bytes.toml"));
    std::fs::create_dir(&folder).expect("made");
    std::fs::write(&bytes, [0xff, 0xfe, 0x00]).expect("written");

    // A sound one beside it changes nothing: what is named is meant.
    std::fs::write(here.join("nexus.toml"), "").expect("written");

    let leaves = leaves(&Cli::command(), &[]);
    assert!(leaves.len() > 40, "{leaves:?}");

    for words in &leaves {
        check(here, words, Some(&missing), None);
        check(here, words, None, Some(&missing));
    }

    for words in leaves.iter().step_by(7) {
        for path in [&folder, &bytes] {
            check(here, words, Some(path), None);
            check(here, words, None, Some(path));
        }
    }

    let left: Vec<_> = std::fs::read_dir(here).expect("listed").flatten().collect();
    assert_eq!(left.len(), 3, "nothing was made: {left:?}");
}
