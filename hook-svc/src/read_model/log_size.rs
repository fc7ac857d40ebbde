//! Limits the size of the read model's write-ahead log: if there is a reader at every moment, SQLite never restarts the
//! log, and it would grow until the disk is full. The log is then truncated: new readers need no log, and no earlier
//! reader lasts longer than two seconds.
//!
//! Source: `docs/design/hooks.md` §5.2.

use std::time::Duration;

use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::projection::Projection;

/// Interval at which the size of the log is checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Size in bytes above which the log is truncated: without readers it restarts at 32 MiB plus one transaction, which is
/// 64 MiB under heavy writing.
const TOO_LARGE: u64 = 96 * 1024 * 1024;

/// Watches the log; never returns.
pub(crate) async fn watch_log(projection: Projection) {
    let size = metrics::gauge!("nexus_projection_wal_bytes");
    let mut again_beyond = TOO_LARGE;
    loop {
        let bytes = projection.log_bytes();
        size.set(bytes as f64);

        // A copy or a loan of the read model holds the log open itself, and ends within a time of its own.
        if bytes > again_beyond && !projection.is_copied() {
            again_beyond = match projection.shorten_log().await {
                Ok(()) => TOO_LARGE,
                Err(error) => {
                    tracing::warn!(
                        error = describe_error(&error),
                        bytes,
                        "failed to truncate the read model's log"
                    );
                    // The writer was blocked by the attempt: the larger the log, the longer the wait until the next
                    // one.
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
