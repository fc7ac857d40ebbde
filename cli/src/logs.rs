//! `nexus logs`: the logs of a `nexus up` on this machine, merged by time.

mod lines;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;

use crate::args::{Common, LogsOptions};
use crate::exit::{Exit, failure};
use crate::output::{Column, LinePrinter, Table, View, Zone};
use crate::when::parse_when;
use lines::{LogLine, parse_lines, split_complete};

/// Interval at which the logs are read for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Size of the end of a log that is read, in bytes: the lines before it are in the file.
const MAX_TAIL: u64 = 4 << 20;

/// Runs the command.
///
/// # Errors
/// Fails if there is no such log, or if one cannot be read.
pub async fn execute(common: &Common, options: &LogsOptions) -> Result<()> {
    let directory = options.data.join("log");
    let since = match &options.since {
        Some(text) => Some(parse_when("--since", text, SystemClock.now())?),
        None => None,
    };

    let mut logs = Logs {
        directory,
        service: options.service.clone(),
        read: BTreeMap::new(),
        zone: Zone::of_reader(),
    };
    let mut lines = logs.read_new()?;
    if logs.read.is_empty() {
        return Err(logs.missing());
    }

    lines.retain(|line| since.is_none_or(|since| line.at.is_some_and(|at| at >= since)));
    let shown = &lines[lines.len().saturating_sub(options.limit)..];
    if !options.follow {
        return show_lines(common, shown);
    }

    let columns = [
        (Column::time("AT"), 19),
        (Column::id("LOG"), 15),
        (Column::id("LINE"), 0),
    ];
    let printer = LinePrinter::new(common, &columns);
    let print = |line: &LogLine| printer.print(&line.log, line, &line.cells());
    shown.iter().try_for_each(print)?;

    loop {
        pause(LOOK_EVERY).await;
        logs.read_new()?.iter().try_for_each(print)?;
    }
}

fn show_lines(common: &Common, lines: &[LogLine]) -> Result<()> {
    let columns = [Column::time("AT"), Column::id("LOG"), Column::id("LINE")];
    let table = Table::new(&columns).with(lines, LogLine::cells);
    let mut names: Vec<String> = lines.iter().map(|line| line.log.clone()).collect();
    names.sort();
    names.dedup();

    View::list(lines, table)?.ids(names).show(common)
}

/// Position in a log, and the time of its last line.
#[derive(Debug, Default)]
struct Place {
    offset: u64,
    at: Option<UnixMillis>,
}

/// The logs of a data directory.
#[derive(Debug)]
struct Logs {
    directory: PathBuf,
    /// Service or replica whose logs are read; `None` for all.
    service: Option<String>,
    read: BTreeMap<String, Place>,
    zone: Zone,
}

impl Logs {
    /// Returns the complete lines that were written since the last call, in the order of time.
    fn read_new(&mut self) -> Result<Vec<LogLine>> {
        let mut lines = Vec::new();
        for (name, path) in self.files() {
            let place = self.read.entry(name.clone()).or_default();
            let text =
                read_from(&path, &mut place.offset).with_context(|| format!("failed to read {}", path.display()))?;
            lines.extend(parse_lines(&name, &text, &mut place.at, &self.zone));
        }

        lines.sort_by_key(|line| line.at);
        Ok(lines)
    }

    /// Returns the logs that are asked for, by name.
    fn files(&self) -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut files: Vec<(String, PathBuf)> = entries
            .filter_map(|entry| {
                let path = entry.path();
                let name = path.file_name()?.to_str()?.strip_suffix(".log")?.to_owned();
                self.is_wanted(&name).then_some((name, path))
            })
            .collect();
        files.sort();
        files
    }

    fn is_wanted(&self, name: &str) -> bool {
        let Some(service) = &self.service else { return true };
        let replica = name.strip_prefix(service.as_str());
        replica.is_some_and(|rest| {
            let number = rest.strip_prefix('-');
            rest.is_empty() || number.is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()))
        })
    }

    /// Returns the error about a log that does not exist.
    fn missing(&self) -> anyhow::Error {
        let all = Self {
            directory: self.directory.clone(),
            service: None,
            read: BTreeMap::new(),
            zone: Zone::utc(),
        };
        let names: Vec<String> = all.files().into_iter().map(|(name, _)| name).collect();
        let shown = self.directory.display();
        let text = match (&self.service, names.is_empty()) {
            (_, true) => format!("there are no logs in {shown}; `nexus up` writes them, `--data` names its directory"),
            (Some(service), false) => format!("no log of `{service}` in {shown}; there are {}", names.join(", ")),
            (None, false) => format!("no log in {shown} can be read"),
        };
        failure(Exit::NotFound, text)
    }
}

/// Returns the complete lines of the file at `path` from `offset` on, at most the last [`MAX_TAIL`] bytes of them, and
/// moves `offset` behind them. A file that has become shorter was begun again.
fn read_from(path: &Path, offset: &mut u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length < *offset {
        *offset = 0;
    }
    if length == *offset {
        return Ok(String::new());
    }

    let start = (*offset).max(length.saturating_sub(MAX_TAIL));
    let is_cut = start > *offset;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(length - start).read_to_end(&mut bytes)?;

    let complete = split_complete(&bytes, is_cut);
    *offset = start + complete.end as u64;
    Ok(String::from_utf8_lossy(&bytes[complete]).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn logs(directory: &Path, service: Option<&str>) -> Logs {
        Logs {
            directory: directory.to_owned(),
            service: service.map(str::to_owned),
            read: BTreeMap::new(),
            zone: Zone::utc(),
        }
    }

    fn texts(lines: &[LogLine]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn logs_are_merged_by_time_and_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            let file = File::options().create(true).append(true).open(path);
            file.expect("opened").write_all(text.as_bytes()).expect("written");
        };
        write(
            "hook-svc-0.log",
            "2026-11-25T10:00:02Z  INFO two\n  of two\n2026-11-25T10:00:05Z  INFO unfinished",
        );
        write("up.log", "2026-11-25T10:00:01Z one\n");
        write("nats-0.log", "[7] 2026/11/25 10:00:03.000001 [INF] three\n");

        let mut all = logs(directory.path(), None);
        assert_eq!(
            texts(&all.read_new().expect("read")),
            ["one", "INFO two", "  of two", "[INF] three"]
        );
        assert!(all.read_new().expect("read").is_empty());

        write("hook-svc-0.log", " no more\n");
        assert_eq!(texts(&all.read_new().expect("read")), ["INFO unfinished no more"]);

        for (service, count) in [("hook-svc", 3), ("hook-svc-0", 3), ("nats", 1), ("up", 1), ("hook", 0)] {
            let mut one = logs(directory.path(), Some(service));
            assert_eq!(one.read_new().expect("read").len(), count, "{service}");
        }

        let error = logs(directory.path(), Some("hook")).missing();
        assert_eq!(Exit::of_error(&error), Exit::NotFound);
        assert!(error.to_string().contains("hook-svc-0, nats-0, up"), "{error}");
    }
}
