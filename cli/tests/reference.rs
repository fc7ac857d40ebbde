//! `docs/cli.md` says what `nexus --help` and its children say. `NEXUS_WRITE_GOLDEN=1` writes it.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command, CommandFactory as _};
use cli::args::Cli;
use cli::exit::Exit;

const PREFACE: &str = "\
# The command `nexus`

Made from the command line itself by `cli/tests/reference.rs`; `NEXUS_WRITE_GOLDEN=1 cargo nextest run -p cli --test reference` writes it.
`nexus completions SHELL` prints the completions of a shell, and `nexus man DIRECTORY` writes these pages for `man`.

## Output

Every command prints the same result in one of three forms:

| form | a list | one thing | a stream (`tail`, `logs -f`, `hook logs -f`, `session tail`, `top`) |
| --- | --- | --- | --- |
| table | a header and a line for each entry | labels and values | a line for each entry |
| `--json` | an array | one object | one object a line |
| `--quiet` | the id of each entry | the id | the id of each entry |

The names of JSON fields are those of the NATS services (`nexus.svc.*`), times are Unix milliseconds, and a field without a value may be missing.
Tables fit the terminal, or 80 columns if the output is none: long texts are cut with `…` or go on in the next line, and ids are never cut. `--wide`
shows everything. Times are in the local time zone (`TZ`), with `--utc` in UTC; a schedule shows the times of its own zone. Characters that could
control the terminal are escaped. Notes and errors go to standard error. If the reader of a pipe has gone, the command ends with code 0.
`nexus send` prints the id alone on a pipe. `nexus mcp` speaks its protocol, and `nexus completions` prints a script, whatever the options.

## Exit codes

The same for all commands, with and without `--json`. The services' own exit codes are in [operations](operations.md).

";

/// The table of the exit codes.
fn exit_codes() -> String {
    let rows = Exit::ALL
        .iter()
        .map(|(exit, meaning)| format!("| {} | {meaning} |\n", *exit as u8));
    format!("| code | meaning |\n| --- | --- |\n{}", rows.collect::<String>())
}

/// An option or argument in a line: how it is written and what it does.
fn line(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let value = values.first().map(|name| name.to_string()).unwrap_or_default();
    let takes_value = arg.get_action().takes_values();
    let written = match arg.get_long() {
        Some(long) if takes_value => format!("--{long} <{value}>"),
        Some(long) => format!("--{long}"),
        None => format!("<{value}>"),
    };

    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|one| one.to_string_lossy())
        .collect();

    if takes_value && !defaults.concat().is_empty() {
        write!(help, " [default: {}]", defaults.join(", ")).expect("a string");
    }

    let possible: Vec<_> = arg
        .get_possible_values()
        .iter()
        .map(|one| one.get_name().to_owned())
        .collect();

    if takes_value && !possible.is_empty() {
        write!(help, " [one of: {}]", possible.join(", ")).expect("a string");
    }

    format!("- `{written}`: {help}\n")
}

fn describe(out: &mut String, path: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let depth = path.split(' ').count().min(3);
    write!(out, "\n{} `{path}`\n\n{about}\n", "#".repeat(depth)).expect("a string");

    let shown = command
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    let own: String = shown
        .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
        .map(line)
        .collect();
    if !own.is_empty() {
        write!(out, "\n{own}").expect("a string");
    }

    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        describe(out, &format!("{path} {}", child.get_name()), child);
    }
}

fn reference() -> String {
    let command = Cli::command();
    let global: String = command
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .map(line)
        .collect();

    let mut out = format!("{PREFACE}{}\n## Global options\n\n{global}", exit_codes());
    for child in command.get_subcommands() {
        describe(&mut out, &format!("nexus {}", child.get_name()), child);
    }

    out
}

#[test]
fn the_page_says_what_the_command_line_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let expected = reference();

    #[expect(
        clippy::disallowed_methods,
        reason = "whoever changes the commands has the page written"
    )]
    if std::env::var_os("NEXUS_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &expected).expect("written");
    }

    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == expected,
        "docs/cli.md is old: run this test with NEXUS_WRITE_GOLDEN=1"
    );
}
