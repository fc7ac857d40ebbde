//! Waiting for a condition, with a deadline and no fixed sleeps.

use std::time::Duration;

use shared::clock::pause;

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `look` answers `Ok`, at most for `deadline`.
///
/// # Panics
/// At the deadline, with what `look` said last.
pub async fn eventually<T>(what: &str, deadline: Duration, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let mut last = "it was never looked at".to_owned();
    let waited = tokio::time::timeout(deadline, async {
        loop {
            match look().await {
                Ok(value) => return value,
                Err(why) => last = why,
            }
            pause(LOOK_EVERY).await;
        }
    });

    match waited.await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {} s: {last}", deadline.as_secs()),
    }
}
