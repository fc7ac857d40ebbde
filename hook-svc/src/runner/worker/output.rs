//! Output and uncaught errors of scripts, logged up to a limit.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;

use super::Run;

/// Longest piece that is logged as one line, in bytes.
const MAX_PRINTED_BYTES: usize = 2_048;

/// Bytes that the hooks of one worker may add to the log in [`PERIOD`], which a log can bear from a broken script.
const MAX_LOGGED_BYTES: usize = 64 * 1024;
const PERIOD: Duration = Duration::from_secs(1);

/// Most bytes of a log line beside the text that a script caused: time, level, module, message, worker.
const LINE_BYTES: usize = 256;

/// Longest escape of a character in either format of the log: `\u0001`.
const ESCAPE_BYTES: usize = 6;

/// Output of a worker that has been logged in this period. The allowance belongs to the worker, not to its process: a
/// script that ends its process gets no second one. *Pure.*
#[derive(Debug)]
pub(super) struct OutputAllowance {
    since: Instant,
    logged: usize,
}

/// Treatment of a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Logged,
    /// Dropped with a warning, because it is the first of its period.
    FirstDropped,
    Dropped,
}

impl OutputAllowance {
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, logged: 0 }
    }

    fn take(&mut self, bytes: usize, now: Instant) -> Fate {
        if now.saturating_duration_since(self.since) >= PERIOD {
            *self = Self::new(now);
        }

        let before = self.logged;
        self.logged = self.logged.saturating_add(bytes);

        if self.logged <= MAX_LOGGED_BYTES {
            Fate::Logged
        } else if before <= MAX_LOGGED_BYTES {
            Fate::FirstDropped
        } else {
            Fate::Dropped
        }
    }
}

impl Run<'_> {
    /// Logs the text that the process prints for as long as it lives.
    pub(super) async fn log_output(&self, mut stderr: ChildStderr) {
        let mut buffer = [0; MAX_PRINTED_BYTES];
        while let Ok(length) = stderr.read(&mut buffer).await {
            if length == 0 {
                break;
            }

            let text = String::from_utf8_lossy(&buffer[..length]);
            let text = text.trim_end();
            if self.may_log(text) {
                tracing::info!(worker = self.index, text, "hook output");
            }
        }

        // A script may close the stream while the process lives on.
        std::future::pending::<()>().await;
    }

    /// Returns whether a line with `text`, which a script caused, may be logged. Warns once a second if lines are
    /// dropped.
    pub(super) fn may_log(&self, text: &str) -> bool {
        let now = self.clock.monotonic();
        let mut allowance = self.output.lock().unwrap_or_else(PoisonError::into_inner);

        match allowance.take(line_bytes(text), now) {
            Fate::Logged => true,
            Fate::FirstDropped => {
                metrics::counter!("nexus_hook_output_dropped_total").increment(1);
                tracing::warn!(
                    worker = self.index,
                    "hook output exceeds {MAX_LOGGED_BYTES} bytes a second; dropping the rest"
                );
                false
            }
            Fate::Dropped => false,
        }
    }
}

/// Returns the most bytes that a log line with `text` takes.
fn line_bytes(text: &str) -> usize {
    let escaped = |character: char| {
        let shown: usize = character.escape_debug().map(char::len_utf8).sum();
        if character.is_control() {
            shown.max(ESCAPE_BYTES)
        } else {
            shown
        }
    };

    LINE_BYTES + text.chars().map(escaped).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    /// Returns the number of lines with `text`, of a thousand at once, that are logged.
    fn logged(text: &str) -> usize {
        let now = SystemClock.monotonic();
        let mut allowance = OutputAllowance::new(now);
        let bytes = line_bytes(text);
        let lines = (0..1_000).map(|_| allowance.take(bytes, now));
        lines.filter(|fate| *fate == Fate::Logged).count()
    }

    #[test]
    fn a_flood_is_dropped_with_one_line_a_second() {
        let start = SystemClock.monotonic();
        let mut allowance = OutputAllowance::new(start);
        let pieces = (0..100).map(|_| allowance.take(MAX_PRINTED_BYTES, start));
        let fates: Vec<Fate> = pieces.collect();
        let count = |fate| fates.iter().filter(|other| **other == fate).count();
        assert_eq!((count(Fate::Logged), count(Fate::FirstDropped)), (32, 1));
        assert_eq!(allowance.take(1, start + PERIOD), Fate::Logged);
    }

    #[test]
    fn a_line_counts_with_all_that_stands_around_its_text() {
        for text in ["", "x", "\u{1}", "\u{202e}"] {
            assert!(logged(text) <= MAX_LOGGED_BYTES / LINE_BYTES, "{text:?}");
        }
        assert_eq!(
            logged(&"\0".repeat(MAX_PRINTED_BYTES)),
            5,
            "each is six bytes in the log"
        );
    }

    proptest! {
        #[test]
        fn no_text_is_longer_in_the_log_than_it_counts(text in any::<String>()) {
            let as_json = serde_json::to_string(&text).expect("it serialises");
            let as_debug = format!("{text:?}");
            let quotes = 2;
            let longest = as_json.len().max(as_debug.len()) - quotes;
            prop_assert!(LINE_BYTES + longest <= line_bytes(&text));
        }
    }
}
