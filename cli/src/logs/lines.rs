//! Lines of the logs that `nexus up` keeps: those of the services, of the server, and its own. *Pure.*

use std::ops::Range;

use jiff::Timestamp;
use serde::Serialize;
use shared::model::time::UnixMillis;

use crate::output::{Cell, Zone};

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LogLine {
    /// Name of the log: `hook-svc-0`, `nats-0`, `up`.
    pub(super) log: String,
    /// Time of the line; for one without a time, that of the line before it.
    pub(super) at: Option<UnixMillis>,
    /// The line without its time.
    pub(super) text: String,
}

impl LogLine {
    /// Returns the line as cells: time, log, text.
    pub(super) fn cells(&self) -> [Cell; 3] {
        [self.at.into(), (&self.log).into(), (&self.text).into()]
    }
}

/// Parses the lines of `text`, a part of log `log`. `last` is the time of the line before; times without a zone are in
/// `zone`.
pub(super) fn parse_lines(log: &str, text: &str, last: &mut Option<UnixMillis>, zone: &Zone) -> Vec<LogLine> {
    text.lines()
        .map(|line| {
            let (at, text) = split_time(line, zone).map_or((*last, line), |(at, text)| (Some(at), text));
            *last = at;
            LogLine {
                log: log.to_owned(),
                at,
                text: text.to_owned(),
            }
        })
        .collect()
}

/// Returns the range of the complete lines in `bytes`. If `is_cut`, the first line is not complete either.
pub(super) fn split_complete(bytes: &[u8], is_cut: bool) -> Range<usize> {
    let is_end = |byte: &u8| *byte == b'\n';
    let end = bytes.iter().rposition(is_end).map_or(0, |index| index + 1);
    let start = if is_cut {
        bytes.iter().position(is_end).map_or(end, |index| index + 1)
    } else {
        0
    };
    start..end
}

/// Returns the time at the beginning of `line`, and the rest.
fn split_time<'a>(line: &'a str, zone: &Zone) -> Option<(UnixMillis, &'a str)> {
    if line.starts_with('{') {
        return json_time(line).map(|at| (at, line));
    }

    let (first, rest) = line.split_once(' ')?;
    if let Ok(at) = first.parse::<Timestamp>() {
        return Some((UnixMillis(at.as_millisecond()), rest.trim_start()));
    }

    // nats-server: `[PID] 2026/11/25 10:00:03.000001 [INF] …`, by the clock of its host.
    first.strip_prefix('[')?.strip_suffix(']')?;
    let (date, rest) = rest.split_once(' ')?;
    let (clock, rest) = rest.split_once(' ')?;
    let at = zone.parse_local(&format!("{}T{clock}", date.replace('/', "-")))?;
    Some((at, rest))
}

/// Returns the time of a line that is a JSON object (`telemetry.log = "json"`).
fn json_time(line: &str) -> Option<UnixMillis> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let at: Timestamp = value["timestamp"].as_str()?.parse().ok()?;
    Some(UnixMillis(at.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_writers_are_read() {
        let at = UnixMillis(1_795_341_600_000);
        for (line, text) in [
            (
                "2026-11-22T10:00:00.000400Z  INFO hook_svc: ready",
                "INFO hook_svc: ready",
            ),
            (
                "[12] 2026/11/22 10:00:00.000400 [INF] Server is ready",
                "[INF] Server is ready",
            ),
            (
                r#"{"timestamp":"2026-11-22T10:00:00.000400Z","level":"INFO"}"#,
                r#"{"timestamp":"2026-11-22T10:00:00.000400Z","level":"INFO"}"#,
            ),
        ] {
            assert_eq!(split_time(line, &Zone::utc()), Some((at, text)), "{line}");
        }

        for line in ["", "thread 'main' panicked", "[12] nonsense", "{ no JSON"] {
            assert_eq!(split_time(line, &Zone::utc()), None, "{line}");
        }
    }

    #[test]
    fn a_line_that_is_not_complete_is_left() {
        assert_eq!(split_complete(b"a\nb\nc", false), 0..4);
        assert_eq!(split_complete(b"a\nb\nc", true), 2..4);
        assert_eq!(split_complete(b"abc", false), 0..0);
        assert_eq!(split_complete(b"", true), 0..0);
    }
}
