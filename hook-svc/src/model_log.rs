//! The read model's write-ahead log, watched: a script that leaves a query unfinished keeps SQLite from beginning the log
//! anew, and it would grow until the disk is full. The worker processes are replaced then, and the query ends with them.
//!
//! Source: `hooks.md` "Read model access".

use std::time::Duration;

use shared::clock::pause;
use shared::projection::Projection;

use crate::runner::Pools;

/// How often the log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Beyond so many bytes somebody keeps an old state open: without readers the log is begun anew at 16 MiB.
const TOO_LARGE: u64 = 64 * 1024 * 1024;

/// By how much it must have grown since the workers were replaced before they are again: those that are at work still
/// keep it open, and where nothing is written it stays as large as it is.
const GROWN_AGAIN: u64 = 32 * 1024 * 1024;

/// When workers are to be replaced.
#[derive(Debug, Default)]
struct Watch {
    /// How large the log was when they last were.
    replaced_at: Option<u64>,
}

impl Watch {
    /// Whether a log of so many bytes wants new workers.
    fn wants_new_workers(&mut self, bytes: u64) -> bool {
        if bytes <= TOO_LARGE {
            self.replaced_at = None;
            return false;
        }
        let bound = self.replaced_at.map_or(TOO_LARGE, |at| at.saturating_add(GROWN_AGAIN));
        let wants = bytes > bound;
        if wants {
            self.replaced_at = Some(bytes);
        }
        wants
    }
}

/// Watches the log, for ever.
pub(crate) async fn watch(projection: Projection, pool: Pools) {
    let size = metrics::gauge!("nexus_projection_wal_bytes");
    let mut watch = Watch::default();
    loop {
        let bytes = projection.log_bytes();
        size.set(bytes as f64);
        // A copy holds the log open itself; it is short again soon after.
        if !projection.is_copied() && watch.wants_new_workers(bytes) {
            tracing::warn!(
                bytes,
                "a hook keeps a query of the read model open, workers are replaced"
            );
            pool.replace();
        }
        pause(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_replaced_once_and_again_only_where_that_did_not_help() {
        let mut watch = Watch::default();
        let mut check = |bytes: u64, wants: bool| assert_eq!(watch.wants_new_workers(bytes), wants, "{bytes}");
        check(0, false);
        check(TOO_LARGE, false);
        check(TOO_LARGE + 1, true);
        check(TOO_LARGE + 2, false);
        check(TOO_LARGE + GROWN_AGAIN, false);
        check(TOO_LARGE + GROWN_AGAIN + 2, true);
        check(1, false);
        check(TOO_LARGE + 1, true);
    }
}
