//! What all commands print alike: tables, instants, JSON, and how they find the bus.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comfy_table::{ContentArrangement, Table, presets};
use shared::bus::{Bus, NatsConfig};
use shared::model::time::UnixMillis;
use shared::process::config::{Arguments, Common as Shared, Document, Environment};

use crate::args::Common;

/// Where a running `nexus up` keeps its configuration, relative to the working directory.
const RUNNING_CONFIG: &str = ".nexus/nexus.toml";

/// A plain table with `header`.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

/// `at` as a time of day in UTC with milliseconds.
#[must_use]
pub fn clock(at: UnixMillis) -> String {
    let millis = at.0.rem_euclid(86_400_000);
    let (hours, minutes, seconds) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:03}", millis % 1_000)
}

/// At most `most` characters of the first line of `text`.
#[must_use]
pub fn brief(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= most && line.len() == text.len() {
        return line.to_owned();
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Whoever read what this process prints has gone (`nexus … | head`): nothing is wrong, and nothing more is wanted.
#[derive(Debug, Clone, Copy)]
pub struct ReaderGone;

impl std::fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for ReaderGone {}

/// Prints `text` as it is.
///
/// # Errors
/// [`ReaderGone`], and where the output cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("write to the standard output"),
    }
}

/// Prints `value` as JSON.
///
/// # Errors
/// Where it has no JSON form; [`ReaderGone`].
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value).context("write JSON")? + "\n"))
}

/// The configuration that `common` names, else `./nexus.toml`, else that of a running `nexus up`.
#[must_use]
pub fn document(common: &Common) -> Document {
    let environment = Environment::of_process();
    let mut config = common.config.clone();
    let named = config.is_some() || environment.config().is_some() || PathBuf::from("nexus.toml").exists();
    if !named && PathBuf::from(RUNNING_CONFIG).exists() {
        config = Some(PathBuf::from(RUNNING_CONFIG));
    }
    Document::read(
        &Arguments {
            config,
            ..Arguments::default()
        },
        &environment,
    )
}

/// Section `[nats]` of the configuration, with `--server` laid over it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn nats_config(common: &Common) -> Result<NatsConfig> {
    let (shared, faults) = Shared::load(&document(common));
    let mut config = shared.nats;
    if let Some(server) = &common.server {
        config.servers = vec![server.clone()];
    } else if !faults.is_empty() {
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        anyhow::bail!("the configuration is wrong:\n{}", lines.join("\n"));
    }
    Ok(config)
}

/// A connection to the bus.
///
/// # Errors
/// Where nobody answers, with what to do.
pub async fn bus(common: &Common) -> Result<Bus> {
    let config = nats_config(common)?;
    Bus::connect(&config, "nexus-cli")
        .await
        .context("is it running? `nexus up` starts one here")
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
    }
}
