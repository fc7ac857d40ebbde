//! Decides when a replica takes part: its hooks are loaded and its read model is near the streams' ends. *Pure.*
//!
//! Joining requires more than staying, so that a replica near the limit does not join and leave repeatedly.

use std::time::Duration;

/// Lag of the read model below which a replica joins, and its copy answers others.
pub(crate) const JOIN_BELOW: Duration = Duration::from_secs(1);

/// Lag of the read model above which a replica leaves, and its copy no longer answers.
pub(crate) const LEAVE_ABOVE: Duration = Duration::from_secs(10);

/// State of a replica on which the decision is based.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionCondition {
    /// Lag of the read model; `None` if unknown.
    pub lag: Option<Duration>,
    /// Whether the workers hold the hooks that the registry and directory held when this replica came up.
    pub hooks_loaded: bool,
    /// Number of workers that are up.
    pub workers: usize,
}

/// Returns whether a replica takes part, given whether it does now (`joined`).
#[must_use]
pub fn takes_part(joined: bool, condition: AdmissionCondition) -> bool {
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
            AdmissionCondition {
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
            AdmissionCondition {
                lag: Some(Duration::ZERO),
                hooks_loaded: false,
                workers: 1
            }
        ));
    }
}
