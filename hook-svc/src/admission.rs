//! When a replica takes part: its hooks are loaded and its read model is near the streams' ends. *Pure.*
//!
//! Joining asks for more than staying does, so that a replica at the border does not come and go.

use std::time::Duration;

/// A replica joins while its read model is behind by less.
const JOIN_BELOW: Duration = Duration::from_secs(1);

/// A replica leaves when its read model is behind by more.
const LEAVE_ABOVE: Duration = Duration::from_secs(10);

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// How far the read model is behind; none = not known.
    pub lag: Option<Duration>,
    /// The workers hold what registry and directory held when this replica came up.
    pub hooks_loaded: bool,
    /// Workers that are up.
    pub workers: usize,
}

/// Whether a replica takes part that does (`joined`) or does not.
#[must_use]
pub fn takes_part(joined: bool, condition: Condition) -> bool {
    let bound = if joined { LEAVE_ABOVE } else { JOIN_BELOW };
    let near = condition.lag.is_some_and(|lag| lag < bound);
    // Dead workers are replaced within moments; leaving for that would move every partition.
    near && condition.hooks_loaded && (joined || condition.workers > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(joined: bool, lag_ms: Option<u64>, workers: usize) -> bool {
        takes_part(
            joined,
            Condition {
                lag: lag_ms.map(Duration::from_millis),
                hooks_loaded: true,
                workers,
            },
        )
    }

    #[test]
    fn joining_asks_for_more_than_staying() {
        assert!(check(false, Some(900), 1) && !check(false, Some(1_100), 1));
        assert!(check(true, Some(9_900), 1) && !check(true, Some(10_100), 1));
    }

    #[test]
    fn nobody_takes_part_blindly() {
        assert!(!check(false, None, 1) && !check(true, None, 1));
        assert!(!check(false, Some(0), 0) && check(true, Some(0), 0));
        assert!(!takes_part(
            true,
            Condition {
                lag: Some(Duration::ZERO),
                hooks_loaded: false,
                workers: 1
            }
        ));
    }
}
