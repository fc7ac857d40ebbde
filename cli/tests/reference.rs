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
| `--json` | an array | one object | one object per line |
| `--quiet` | the id of each entry | the id | the id of each entry |

The names of JSON fields are those of the NATS services (`nexus.svc.*`), times are Unix milliseconds, and a field without a value may be missing.
Under each command `JSON` names its form and its main fields, which keep their names; further ones may be added.
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

/// What each command prints with `--json`, by the words of the command.
const JSON: [(&str, &str); 93] = [
    (
        "up",
        "object: `web_chat`, `owner_link`, `events`, `token_file`, `webhooks`, `nats`, `hooks`, `logs`",
    ),
    ("down", "object: `stopped` (process id), `left` (process ids)"),
    ("demo", "array of traces"),
    (
        "status",
        "array: `service`, `instance`, `state`, `ready`, `version`, `pid`, `detail`",
    ),
    ("logs", "array, with `--follow` lines: `log`, `at`, `text`"),
    ("doctor", "array: `what`, `ok`, `level`, `detail`"),
    (
        "backup",
        "object: `id`, `begun_at`, `ended_at`, `quiesced`, `cluster_key`, `streams`, `left_out`",
    ),
    (
        "restore",
        "array: `name`, `messages`, `last`; `--list`: array of `delivery`, `event`, `session`, `target`, `content`; `--send`, `--drop`: object of `decision`, `deliveries`",
    ),
    ("topology plan", "array: `what`, `option`, `wanted`, `found`"),
    ("topology apply", "object: `created`, `updated`"),
    ("send", "object, for `-` an array: `id`"),
    (
        "tail",
        "lines: `stream`, `sequence`, `subject`, `at`, `payload`, `left_out_bytes` (of a payload that is too large)",
    ),
    (
        "top",
        "lines: `at`, `streams`, `events_behind`, `busy_sessions`, `sessions`",
    ),
    ("trace", "object: `event`, `steps`, `complete`, `cut`, `absent`"),
    (
        "events search",
        "array: `event_id`, `score`, `channel`, `timestamp`, `from_id`, `excerpt`",
    ),
    (
        "events show",
        "object: `id`, `sequence`, `timestamp`, `channel`, `peer_id`, `from_id`, `direction`, `content`, `metadata`",
    ),
    ("dlq list", "array: `number`, `letter`"),
    (
        "dlq show",
        "object: `number`, `letter`, `headers`, `payload`, `payload_bytes`, `history`",
    ),
    (
        "dlq redrive",
        "object, with `--all` an array: `number`, `subject`, `sequence`, `repeated`",
    ),
    (
        "dlq drop",
        "object, with `--all` an array: `number`, `service`, `reason`, `repeated`",
    ),
    (
        "recover list",
        "array: `id`, `kind`, `stream`, `subject`, `why`, `at`, `wanted`",
    ),
    (
        "recover redo",
        "object, with `--all` an array: `id`, `kind`, `decision`",
    ),
    (
        "recover skip",
        "object, with `--all` an array: `id`, `kind`, `decision`",
    ),
    (
        "breaker list",
        "array: `hook_id`, `failures`, `circuit`, `last_error_at`",
    ),
    (
        "breaker reset",
        "object, as it was: `hook_id`, `failures`, `circuit`, `last_error_at`",
    ),
    ("audit", "array: `sequence`, `at`, `subject`, `schema`, `record`"),
    ("session release", "object: `why`"),
    ("session list", "array: `session`, `records`"),
    (
        "session show",
        "object: `session`, `running`, `idle`, `waiting`, `quarantined`, `head`, `turns_in_history`, `usage`, `queue`, `model`",
    ),
    ("session tail", "lines: `sequence`, `at`, `append`, `entries`"),
    ("session abort", ORDER),
    ("session interrupt", ORDER),
    ("session reset", ORDER),
    ("session queue", ORDER),
    ("session send", ORDER),
    ("session fork", "object, as of `session show`"),
    ("session wait", "object: `idle`"),
    ("hook new", WRITTEN),
    (
        "hook test",
        "object: `fired`, `result`, `error`, `stack`, `latency_us`, `llm_calls`, `llm_cost_usd`, `search_calls`",
    ),
    (
        "hook backtest",
        "object: `events`, `fires`, `failures`, `fired`, `failed`, `latency`, `llm`, `by_channel`, `by_day`",
    ),
    ("hook import-claude", WRITTEN),
    ("hook push", "object, for a directory an array, as of `hook list`"),
    (
        "hook list",
        "array: `id`, `name`, `description`, `status`, `origin`, `created_by`, `trigger_count`, `last_triggered`, `disabled_reason`, `parse_error`",
    ),
    (
        "hook show",
        "object: `hook` (as of `hook list`), `source`, `invocations` (as of `hook logs`)",
    ),
    ("hook enable", HOOK),
    ("hook disable", HOOK),
    ("hook rm", HOOK),
    (
        "hook logs",
        "array, with `--follow` lines: `event_id`, `started_at`, `latency_ms`, `outcome`, `reason`, `dispatch_id`, `error`",
    ),
    (
        "schedule list",
        "array: `spec`, `paused`, `next`, `last`, `fired`, `skipped`",
    ),
    ("schedule show", SCHEDULE),
    ("schedule next", "object: `zone`, `firings` (`nominal`, `due`)"),
    ("schedule pause", SCHEDULE),
    ("schedule resume", SCHEDULE),
    ("schedule fire", "array: `event_id`"),
    ("schedule backfill", "array: `event_id`"),
    (
        "intent list",
        "array: `intent`, `status`, `due`, `deadline`, `rejection`",
    ),
    ("intent show", "object: `intent` (as of `intent list`), `history`"),
    ("intent cancel", INTENT),
    ("intent reschedule", INTENT),
    ("intent approve", INTENT),
    ("intent propose", INTENT),
    (
        "approval list",
        "array: `request`, `status`, `requested_by`, `requested_at`, `decided_by`, `decided_at`, `trail`",
    ),
    ("approval show", "object, as of `approval list`"),
    ("approval approve", DECISION),
    ("approval deny", DECISION),
    ("approval edit", DECISION),
    (
        "channel list",
        "array: `account`, `direct`, `allowed`, `groups`, `source`, `is_reading`, `holder`, `read_until`, `is_delivered`, `refused_since`",
    ),
    ("channel show", "object, as of `channel list`"),
    ("channel check", "array: `what`, `ok`, `degraded`, `detail`"),
    (
        "channel pairings",
        "array: `channel`, `account`, `sender`, `name`, `state`, `since`, `expires_at`, `is_restored`",
    ),
    ("channel pair", PAIRING),
    ("channel unpair", PAIRING),
    (
        "backfill start",
        "object: `id`, `channel`, `account`, `since`, `until`, `conversations`, `by`, `state`, `reason`, `started_at`, `changed_at`, `read_by`, `found`, `finished`, `events`, `passed_over`, `place`, `skipped`, `skipped_count`",
    ),
    ("backfill list", "array, as of `backfill start`"),
    ("backfill show", "object, as of `backfill start`"),
    ("backfill stop", "object, as of `backfill start`"),
    ("owner link", "object: `link`, `minutes`"),
    (
        "owner list",
        "array: `claimed_by`, `claimed_at`, `made_at`, `expires_at`",
    ),
    ("owner remove", "object: `visitor`"),
    ("auth init", "object: `dir`, `users`, `server`, `secrets`"),
    ("auth add", "object, as of `auth show`"),
    ("auth rotate", "object, as of `auth show`"),
    ("auth revoke", "object, as of `auth show`"),
    (
        "auth list",
        "array: `name`, `role`, `account`, `state`, `issued`, `expires`, `channel`, `key`",
    ),
    (
        "auth show",
        "object, as of `auth list`, with `credentials`, `publish`, `subscribe`",
    ),
    ("config check", "object: `source`, `ok`, `faults`, `warnings`"),
    ("config show", "object: the sections of the configuration"),
    (
        "bench",
        "object, for several durabilities an array: `end_to_end`, `event_to_dispatch`, `raw_jetstream`, `ratio`, `hook_svc`, …; with `--replicas` or `--steady`: `replicas`, `steady`, `durability`, `machine`, `setting`; with `--backlog`: `backlog`, `durability`, `machine`, `setting`",
    ),
    ("bench hooks", "object: `hooks`, `bindings`"),
    (
        "bench read-model",
        "array: `events`, `rows_per_s`, `two_words`, `five_words`, `filtered`, `file_mib`",
    ),
    (
        "bench queries",
        "array: `queries`, `file`, `protocol` (`events_per_s`, `p50_us`, `p99_us` each)",
    ),
    ("init", WRITTEN),
    ("man", WRITTEN),
];
const ORDER: &str = "object: `id`, `sequence`";
const PAIRING: &str = "object: `pairing`, as of `channel pairings`, `changed`";
const WRITTEN: &str = "object: `written` (paths)";
const HOOK: &str = "object, as of `hook list`";
const SCHEDULE: &str = "object, as of `schedule list`";
const INTENT: &str = "object: `id`, `status`, `due`, `rejection`, `approval`";
const DECISION: &str = "object: `id`, `status`, `changed`, `votes`";
/// Commands whose output is a protocol or a script.
const WITHOUT_JSON: [&str; 2] = ["mcp", "completions"];

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

    let words = path.trim_start_matches("nexus ");
    if let Some((_, fields)) = JSON.iter().find(|(command, _)| *command == words) {
        write!(out, "\nJSON: {fields}.\n").expect("a string");
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

/// The words of every command that prints something.
fn leaves(command: &Command, before: &str) -> Vec<String> {
    let mut found = Vec::new();
    for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
        let words = format!("{before}{}", child.get_name());
        found.extend(leaves(child, &format!("{words} ")));
        if !child.is_subcommand_required_set() {
            found.push(words);
        }
    }
    found
}

#[test]
fn the_json_of_every_command_is_on_the_page() {
    let mut expected = leaves(&Cli::command(), "");
    expected.retain(|words| !WITHOUT_JSON.contains(&words.as_str()));
    expected.sort();
    let mut documented: Vec<String> = JSON.iter().map(|(words, _)| (*words).to_owned()).collect();
    documented.sort();
    assert_eq!(documented, expected);
}
