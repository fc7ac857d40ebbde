//! Output of all commands (tables, times, JSON), and the search for the configuration and the bus.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use comfy_table::{ContentArrangement, Table, presets};
use shared::bus::{Bus, ConnectBusError, NatsConfig};
use shared::model::time::UnixMillis;
use shared::process::SecretValue;
use shared::process::config::{
    CommonConfig as Shared, ConfigDocument, ConfigEnvironment, ServiceArguments, TrustConfig, edge_faults,
};
use shared::wire::seal::TrustKeys;

use crate::args::Common;

/// Configuration that a running `nexus up` keeps, relative to the working directory.
const RUNNING_CONFIG: &str = ".nexus/nexus.toml";
/// User of the services on a server that has users (`deploy/nats/permissions.conf`).
const SERVICES_USER: &str = "nexus";
/// User of the command line on such a server.
const OPERATOR_USER: &str = "operator";

/// Returns a plain table with the columns of `header`.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

/// Returns `at` as a time of day in UTC with milliseconds.
#[must_use]
pub fn clock(at: UnixMillis) -> String {
    let millis = at.0.rem_euclid(86_400_000);
    let (hours, minutes, seconds) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:03}", millis % 1_000)
}

/// Returns at most `most` characters of the first line of `text`, [plain].
#[must_use]
pub fn brief(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= most && line.len() == text.len() {
        return plain(line);
    }
    let cut: String = line.chars().take(most.saturating_sub(1)).chain(['…']).collect();
    plain(&cut)
}

/// Returns whether `c` can control a terminal, or reverse the direction of the text beside it.
fn steers(c: char) -> bool {
    let turns_round =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns_round
}

/// Returns `text` as it is written to a terminal: every character that [steers] is escaped except line breaks and tabs.
/// [`plain`] escapes these too, for text that must stay on its line.
fn harmless(text: String) -> String {
    let is_bad = |c: char| steers(c) && !matches!(c, '\n' | '\t');
    if !text.contains(is_bad) {
        return text;
    }

    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns `text` with its control characters escaped, so that a stranger's text cannot control the terminal.
#[must_use]
pub fn plain(text: &str) -> String {
    let escaped = text.chars().map(|c| {
        if steers(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    escaped.collect()
}

/// Returns every line of `text`, [plain], but with its tabs: for a source, or the place of an error.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(plain).collect::<Vec<_>>().join("\t");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns `text`, which is JSON, with the characters escaped that [plain] escapes and JSON leaves as they are. They
/// occur only within JSON strings, so a parser reads the same value.
fn plain_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) && !matches!(c, '\n' | '\t' | '\r') {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// The reader of this process's output has gone (`nexus … | head`): no fault, and no more output is wanted.
#[derive(Debug, Clone, Copy)]
pub struct ReaderGone;

impl std::fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for ReaderGone {}

/// Prints `text`, with the characters escaped that could control the terminal.
///
/// # Errors
/// Returns [`ReaderGone`] if the reader has gone, and an error if the output cannot be written.
pub fn print(text: &str) -> Result<()> {
    let text = harmless(text.to_owned());
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("write to the standard output"),
    }
}

/// First write of `say!` that failed, if any.
static FAILED: OnceLock<std::io::Error> = OnceLock::new();

/// Writes `line` to the standard output for `say!`, with the characters escaped that could control the terminal. A
/// command that has effects goes on with them if its reader goes, so this returns no error: [`written`] returns it at
/// the end.
pub fn say_line(line: std::fmt::Arguments<'_>) {
    let text = harmless(format!("{line}\n"));
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        FAILED.get_or_init(|| error);
    }
}

/// Writes `line` to the standard error for `complain!`, with the characters escaped that could control the terminal. A
/// failed write is ignored: there is no other place to report it.
pub fn complain_line(line: std::fmt::Arguments<'_>) {
    let text = harmless(format!("{line}\n"));
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Checks that everything that was given to `say!` could be written.
///
/// # Errors
/// Fails if the standard output could not be written, for example to a full disk. A reader that has gone is no error.
pub fn written() -> Result<()> {
    match FAILED.get() {
        Some(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::anyhow!("write to the standard output: {error}"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Prints a line to the standard output, as `println!` does, but never panics: a command whose reader has gone still
/// ends its work.
#[macro_export]
macro_rules! say {
    () => { $crate::output::say_line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::say_line(format_args!($($text)*)) };
}

/// Prints a line to the standard error, as `eprintln!` does, but never panics.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::complain_line(format_args!($($text)*)) };
}

/// Prints `value` as JSON.
///
/// # Errors
/// Fails if `value` has no JSON form. Returns [`ReaderGone`] if the reader has gone.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    print(&(json_text(value)? + "\n"))
}

/// Returns `value` as JSON over several lines, with the characters escaped that could control the terminal.
///
/// # Errors
/// Fails if `value` has no JSON form.
pub fn json_text(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).context("write JSON")?;
    Ok(plain_json(&text))
}

/// Prints `value` as one line of JSON.
///
/// # Errors
/// Fails if `value` has no JSON form. Returns [`ReaderGone`] if the reader has gone.
pub fn json_line(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value).context("write JSON")?;
    print(&(plain_json(&text) + "\n"))
}

/// Returns the configuration file that the command line names, else the one that `NEXUS_CONFIG` names.
#[must_use]
pub fn named_config(common: &Common) -> Option<PathBuf> {
    common
        .config
        .clone()
        .or_else(|| ConfigEnvironment::of_process().config_path())
}

/// Checks that a named configuration file can be read, even if the command does not use it.
///
/// # Errors
/// Fails if the file does not exist, is a directory, or cannot be read as text.
pub fn check_named_config(common: &Common) -> Result<()> {
    let Some(path) = named_config(common) else {
        return Ok(());
    };

    let by = if common.config.is_some() {
        "--config"
    } else {
        "NEXUS_CONFIG"
    };
    let read = std::fs::read_to_string(&path);
    read.with_context(|| format!("{by}: cannot read the configuration {}", path.display()))?;

    Ok(())
}

/// Returns the configuration that `common` names, else `./nexus.toml`, else that of a running `nexus up`.
#[must_use]
pub fn document(common: &Common) -> ConfigDocument {
    let mut config = named_config(common);
    let beside = config.is_some() || PathBuf::from("nexus.toml").exists();
    if !beside && PathBuf::from(RUNNING_CONFIG).exists() {
        config = Some(PathBuf::from(RUNNING_CONFIG));
    }
    read(config)
}

fn read(config: Option<PathBuf>) -> ConfigDocument {
    let arguments = ServiceArguments {
        config,
        ..ServiceArguments::default()
    };
    ConfigDocument::read(&arguments, &ConfigEnvironment::of_process())
}

/// Returns the settings by which this command reaches the bus: section `[nats]` of the configuration, else of the
/// `nexus up` that keeps its data in `.nexus`, with `--server` laid over it. On the server of a `nexus up` the command
/// line is the user `operator`.
///
/// # Errors
/// Returns all faults of the section together.
pub fn nats_config(common: &Common) -> Result<NatsConfig> {
    let chosen = document(common);
    // `nexus up` ignores `[nats]` of the file beside it: it runs a server of its own.
    let is_elsewhere = named_config(common).is_none() && !chosen.value("nats").contains_key("servers");
    let running = PathBuf::from(RUNNING_CONFIG);
    let is_beside = is_elsewhere && running.exists();
    let document = if is_beside { read(Some(running)) } else { chosen };

    let (shared, faults) = Shared::load(&document);
    let faults: Vec<String> = document
        .faults()
        .iter()
        .chain(&faults)
        .map(ToString::to_string)
        .collect();

    let mut config = shared.nats;
    match &common.server {
        // The password belongs to the configured server and must not be sent to another one.
        Some(server) if !config.servers.contains(server) => {
            config.servers = vec![server.clone()];
            if is_beside {
                config.user.clear();
                config.password = None;
            }
        }
        Some(server) => config.servers = vec![server.clone()],
        None if !faults.is_empty() => bail!("the configuration is wrong:\n{}", faults.join("\n")),
        None => {}
    }

    as_operator(config)
}

/// Returns `config` as the user `operator`, if it names the services' user of a data directory that has an operator.
fn as_operator(mut config: NatsConfig) -> Result<NatsConfig> {
    let reference = config
        .password
        .as_ref()
        .and_then(|password| password.reference().strip_prefix("file:"));
    let services = reference.map(Path::new).filter(|_| config.user == SERVICES_USER);
    let operator = services.and_then(Path::parent).map(|users| users.join(OPERATOR_USER));
    if let Some(path) = operator.filter(|path| path.is_file()) {
        let password = SecretValue::resolve(&format!("file:{}", path.display()));
        config.password = Some(password.context("read the operator's password")?);
        OPERATOR_USER.clone_into(&mut config.user);
    }

    Ok(config)
}

/// Returns the keys that seal and check events, as far as the configuration names keys that can be read.
pub fn trust(common: &Common) -> Arc<TrustKeys> {
    let document = document(common);
    let trust = document.section("trust", TrustConfig::find_faults);
    let edges = document.section("edges", edge_faults);
    Arc::new(trust.value.build_trust(&edges.value))
}

/// Returns a connection to the bus, with the keys that the configuration names.
///
/// # Errors
/// Fails if no server answers; the error says what to do.
pub async fn bus(common: &Common) -> Result<Bus> {
    let config = nats_config(common)?;
    let bus = Bus::connect(&config, "nexus-cli").await.map_err(|error| {
        let is_down = matches!(&error, ConnectBusError::Unreachable { detail, .. } if detail.to_lowercase().contains("connection refused"));
        let error = anyhow::Error::new(error);
        if is_down {
            error.context("is it running? `nexus up` starts one here")
        } else {
            error
        }
    })?;

    Ok(bus.with_trust(trust(common)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_texts_are_short() {
        assert_eq!(clock(UnixMillis(3_723_004)), "01:02:03.004");
        assert_eq!(brief("one\ntwo", 10), "one…");
        assert_eq!(brief("abcdef", 4), "abc…");
        assert_eq!(brief("abcd", 4), "abcd");
        assert_eq!(brief("a\u{1b}b\nc", 4), "a\\u{1b}b…");
        assert_eq!(plain("é\u{1b}[2J\u{9b}\u{202e}ok"), "é\\u{1b}[2J\\u{9b}\\u{202e}ok");
    }

    #[test]
    fn nothing_that_is_written_steers_the_terminal() {
        let check = |text: &str, expected: &str| assert_eq!(harmless(text.to_owned()), expected);
        check("a\tb\nc é 日本 🙂\n", "a\tb\nc é 日本 🙂\n");
        check(
            "\u{1b}[2J\u{9b}31m\r\u{8}\u{7}\0",
            "\\u{1b}[2J\\u{9b}31m\\r\\u{8}\\u{7}\\u{0}",
        );
        check(
            "\u{202e}evil\u{2066}\u{61c}\u{200f}",
            "\\u{202e}evil\\u{2066}\\u{61c}\\u{200f}",
        );

        // Text that was escaped before stays as it is.
        let once = plain("\u{1b}[2J");
        check(&once, &once);
        for c in (0..=0x2100).filter_map(char::from_u32) {
            let written = harmless(c.to_string());
            assert!(!written.contains(|c| steers(c) && c != '\n' && c != '\t'), "{c:?}");
        }
    }

    #[test]
    fn several_lines_and_json_cannot_steer_the_terminal_either() {
        let source = "if (x) {\n\treturn \"\u{1b}]0;mine\u{7}\";\r\n}";
        assert_eq!(plain_lines(source), "if (x) {\n\treturn \"\\u{1b}]0;mine\\u{7}\";\n}");
        assert_eq!(plain_lines("over\rwritten"), "over\\rwritten");

        let value = serde_json::json!({"text": "\u{1b}[2J\u{7f}\u{9b}31m\u{202e}é\n"});
        let text = json_text(&value).unwrap();
        assert!(!text.chars().any(|c| steers(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
