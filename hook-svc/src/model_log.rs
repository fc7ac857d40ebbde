//! The read model's write-ahead log, watched: where somebody reads at every moment, SQLite never begins the log anew, and it
//! would grow until the disk is full. It is cut off then: who reads from there on needs no log, and nobody who read before
//! does so for more than two seconds.
//!
//! Source: `docs/design/hooks.md` §5.2.

use std::time::Duration;

use shared::clock::pause;
use shared::projection::Projection;

use crate::error::chain;

/// How often the log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Beyond so many bytes it is cut off: without readers it is begun anew at 32 MiB and one transaction, which are 64 MiB
/// where much is taken in.
const TOO_LARGE: u64 = 96 * 1024 * 1024;

/// Watches the log, for ever.
pub(crate) async fn watch(projection: Projection) {
    let size = metrics::gauge!("nexus_projection_wal_bytes");
    let mut again_beyond = TOO_LARGE;
    loop {
        let bytes = projection.log_bytes();
        size.set(bytes as f64);

        // A copy holds the log open itself; it is short again soon after.
        if bytes > again_beyond && !projection.is_copied() {
            again_beyond = match projection.shorten_log().await {
                Ok(()) => TOO_LARGE,
                Err(error) => {
                    tracing::warn!(error = chain(&error), bytes, "failed to truncate the read model's log");
                    // The writer has stood still for it: the next try is as far away as the log is large.
                    bytes.saturating_mul(2)
                }
            };
        }

        if bytes <= TOO_LARGE {
            again_beyond = TOO_LARGE;
        }

        pause(LOOK_EVERY).await;
    }
}
