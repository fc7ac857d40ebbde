//! Waiting for a condition: it is checked again and again, with a deadline, and no time is waited blindly.

use std::time::Duration;

use crate::clock::pause;

/// Longest wait for anything on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// Interval at which a condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `holds` returns true, at most for 120 s.
///
/// # Panics
/// Panics at the deadline, with `what`.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let look = async || holds().await.then_some(()).ok_or_else(String::new);
    eventually_within(what, DEADLINE, look).await;
}

/// Waits until `look` finds something, at most for 120 s, and returns it.
///
/// # Panics
/// Panics at the deadline, with `what`.
pub async fn eventually_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let look = async || look().await.ok_or_else(String::new);
    eventually_within(what, DEADLINE, look).await
}

/// Waits until `look` returns `Ok`, at most for `deadline`, and returns its value.
///
/// # Panics
/// Panics at the deadline, with `what` and the last error.
pub async fn eventually_within<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let mut last = String::new();
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
        Err(_) => panic!("{what}: not within {deadline:?} {last}"),
    }
}

/// Work that is not done yet, as a look at it found it.
#[derive(Debug)]
pub struct WorkLeft {
    /// Number of items that are left.
    pub count: u64,
    /// Their description in the panic.
    pub why: String,
}

/// Waits until `look` returns `Ok`, as long as the number of items that are left reaches a new low at least once in
/// `stall`: how long much work takes depends on the machine, that it goes on does not.
///
/// # Panics
/// Panics when there was no new low for `stall`, with `what` and the last error.
pub async fn eventually_while_progressing<T>(
    what: &str,
    stall: Duration,
    mut look: impl AsyncFnMut() -> Result<T, WorkLeft>,
) -> T {
    let mut least = u64::MAX;

    loop {
        let looked = eventually_within(what, stall, async || match look().await {
            Ok(done) => Ok(Ok(done)),
            Err(left) if left.count < least => Ok(Err(left.count)),
            Err(left) => Err(format!("{} are left, no less than before: {}", left.count, left.why)),
        });
        match looked.await {
            Ok(done) => return done,
            Err(left) => least = left,
        }
    }
}
