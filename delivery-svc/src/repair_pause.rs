//! Pauses of the works of a partition, which end early if the partition is given up.

use std::time::Duration;

use shared::clock::pause;
use shared::process::lifecycle::ShutdownSignal;

/// Wait after an error of the bus before the same work is started again.
pub(crate) const REPAIR_PAUSE: Duration = Duration::from_secs(1);

/// Waits for `duration`, or until the partition is given up.
pub(crate) async fn wait(duration: Duration, stop: &ShutdownSignal) {
    tokio::select! {
        () = pause(duration) => {}
        () = stop.requested() => {}
    }
}
