//! What scripts print, or throw at nobody: logged, as far as it is no flood.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;

use super::{Run, State};

/// Longest piece that is logged at once, in bytes.
const MAX_PRINTED_BYTES: usize = 2_048;

/// What is logged of one process in [`PERIOD`], in bytes: as much as a log bears from a script that has gone wrong.
const MAX_LOGGED_BYTES: usize = 64 * 1024;
const PERIOD: Duration = Duration::from_secs(1);

/// How much of a process's output has been logged in this period. *Pure.*
#[derive(Debug)]
pub(super) struct Allowance {
    since: Instant,
    logged: usize,
}

/// What becomes of a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Logged,
    /// Dropped, and this is said: it is the first of its period.
    FirstDropped,
    Dropped,
}

impl Allowance {
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
    /// Logs what the process prints for as long as it lives.
    pub(super) async fn log_output(&self, mut stderr: ChildStderr) {
        let mut buffer = [0; MAX_PRINTED_BYTES];
        while let Ok(length) = stderr.read(&mut buffer).await {
            if length == 0 {
                break;
            }

            if self.may_log(&mut self.state(), length) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                tracing::info!(worker = self.index, text = text.trim_end(), "hooks printed");
            }
        }

        // A script may close the stream; the process lives on.
        std::future::pending::<()>().await;
    }

    /// Whether so many bytes that scripts cause may be logged; says once a second that they may not.
    pub(super) fn may_log(&self, state: &mut State<'_>, bytes: usize) -> bool {
        match state.output.take(bytes, self.clock.monotonic()) {
            Fate::Logged => true,
            Fate::FirstDropped => {
                metrics::counter!("nexus_hook_output_dropped_total").increment(1);
                tracing::warn!(
                    worker = self.index,
                    "hooks print more than {MAX_LOGGED_BYTES} bytes a second: the rest is dropped"
                );
                false
            }
            Fate::Dropped => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn a_flood_is_dropped_with_one_line_a_second() {
        let start = SystemClock.monotonic();
        let mut allowance = Allowance::new(start);
        let pieces = (0..100).map(|_| allowance.take(MAX_PRINTED_BYTES, start));
        let fates: Vec<Fate> = pieces.collect();
        let count = |fate| fates.iter().filter(|other| **other == fate).count();
        assert_eq!((count(Fate::Logged), count(Fate::FirstDropped)), (32, 1));
        assert_eq!(allowance.take(1, start + PERIOD), Fate::Logged);
    }
}
