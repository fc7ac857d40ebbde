//! A connection to a server that is known to run.

use std::time::Duration;

use crate::bus::{Bus, NatsConfig};
use crate::clock::{Clock as _, SystemClock, pause};

/// How long the server's answer may take on a busy machine, all tries together.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Connects as `name`. On a busy machine one try may be over before the server has answered, and is made again.
///
/// # Panics
/// Where nobody answers for 20 s.
pub async fn connect(config: &NatsConfig, name: &str) -> Bus {
    let begun = SystemClock.monotonic();
    loop {
        match Bus::connect(config, name).await {
            Ok(bus) => return bus,
            Err(error) => {
                let waited = SystemClock.monotonic().saturating_duration_since(begun);
                assert!(waited < PATIENCE, "no server answers within {waited:?}: {error}");
            }
        }
        pause(TRY_EVERY).await;
    }
}
