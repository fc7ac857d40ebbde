//! The read model's write-ahead log, watched: a script that leaves a query unfinished keeps SQLite from beginning the log
//! anew, and it would grow until the disk is full. The worker processes are replaced then, and the query ends with them.
//!
//! Source: `hooks.md` "Read model access".

use std::time::Duration;

use shared::clock::pause;
use shared::projection::Projection;

use crate::error::chain;
use crate::runner::Living;

/// How often the log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Beyond so many bytes somebody keeps an old state open: without readers the log is begun anew at 32 MiB and one
/// transaction, which are 64 MiB where much is taken in.
const TOO_LARGE: u64 = 96 * 1024 * 1024;

/// By how much it must have grown since it was cut off in vain, or by the next workers' queries, before they are replaced
/// again: where nothing is written it stays as large as it is.
const GROWN_AGAIN: u64 = 32 * 1024 * 1024;

/// When workers are to be replaced.
#[derive(Debug, Default)]
struct Watch {
    /// Beyond which size they are again, where they have been.
    again_beyond: Option<u64>,
}

impl Watch {
    /// Whether a log of so many bytes wants new workers.
    fn wants_new_workers(&mut self, bytes: u64) -> bool {
        if bytes <= TOO_LARGE {
            self.again_beyond = None;
            return false;
        }
        let wants = bytes > self.again_beyond.unwrap_or(TOO_LARGE);
        if wants {
            self.again_beyond = Some(bytes.saturating_add(GROWN_AGAIN));
        }
        wants
    }

    /// Evaluations under way have kept a log of so many bytes: the next try, for which all others stand still as well, is
    /// as far away as it is large.
    const fn was_in_vain(&mut self, bytes: u64) {
        self.again_beyond = Some(bytes.saturating_mul(2));
    }
}

/// Watches the log, for ever.
pub(crate) async fn watch(projection: Projection, living: Living) {
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
            // Hooks may begin the next query with their first event, and keep the log from being cut off again.
            match living.replace(projection.shorten_log()).await {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    watch.was_in_vain(bytes);
                    tracing::warn!(error = chain(&error), "the read model's log was not cut off");
                }
                None => {
                    watch.was_in_vain(bytes);
                    tracing::warn!("an evaluation takes longer: the read model's log was not cut off");
                }
            }
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

    #[test]
    fn after_a_try_in_vain_it_may_be_twice_as_large() {
        let mut watch = Watch::default();
        assert!(watch.wants_new_workers(TOO_LARGE + 1));
        watch.was_in_vain(TOO_LARGE + 1);
        assert!(!watch.wants_new_workers(2 * TOO_LARGE + 2));
        assert!(watch.wants_new_workers(2 * TOO_LARGE + 3));
        assert!(!watch.wants_new_workers(1) && watch.wants_new_workers(TOO_LARGE + 1));
    }
}
