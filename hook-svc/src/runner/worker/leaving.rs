//! Replacement of a process because files that it has loaded have left the set. *Pure.*
//!
//! Timers of a hook that was deleted or replaced end with it, but other code that it left running does not: a loop over
//! promises, a listener. That ends with the process. Edits that follow each other closely cost one process.

use std::time::Duration;

/// Shortest time before a replacement, so that further edits are included.
const AFTER: Duration = Duration::from_secs(5);

/// Time after which the process takes no more events, even if no other process can take its place.
const DRAINS_AFTER: Duration = Duration::from_secs(20);

/// Time after which the process ends in its turn, even if events are under way in it. Without its turn it goes on: a pool
/// whose replacements cannot start keeps the processes that it has.
const MOST: Duration = Duration::from_secs(30);

/// Decision for a process that has loaded such files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// The process continues as before.
    Stay,
    /// The process takes no more events.
    Drain,
    /// The process ends now.
    End,
}

/// State of the process and its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaver {
    /// Time since the files left the set.
    pub(super) waited: Duration,
    /// Whether no event is under way in the process.
    pub(super) is_free: bool,
    /// Whether the process has its turn: the processes of a pool are replaced one after the other.
    pub(super) has_turn: bool,
    /// Whether another process is up.
    pub(super) has_others: bool,
}

/// Decides for the process in state `leaver`.
pub(super) fn decide(leaver: Leaver) -> Leave {
    let Leaver {
        waited,
        is_free,
        has_turn,
        has_others,
    } = leaver;

    if waited < AFTER || !has_turn {
        Leave::Stay
    } else if is_free || waited >= MOST {
        Leave::End
    } else if has_others || waited >= DRAINS_AFTER {
        Leave::Drain
    } else {
        Leave::Stay
    }
}

/// Returns whether [`decide`] needs to know the turn of a process after `waited`.
pub(super) fn wants_turn(waited: Duration) -> bool {
    waited >= AFTER
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn leaver(seconds: u64) -> Leaver {
        Leaver {
            waited: Duration::from_secs(seconds),
            is_free: true,
            has_turn: true,
            has_others: true,
        }
    }

    #[test]
    fn it_ends_when_nothing_is_under_way_and_not_at_once() {
        assert_eq!(decide(leaver(4)), Leave::Stay);
        assert_eq!(decide(leaver(5)), Leave::End);
    }

    #[test]
    fn it_takes_nothing_more_where_another_takes_its_place_or_time_is_short() {
        let busy = |seconds, has_others| {
            decide(Leaver {
                is_free: false,
                has_others,
                ..leaver(seconds)
            })
        };
        assert_eq!((busy(5, true), busy(5, false)), (Leave::Drain, Leave::Stay));
        assert_eq!((busy(20, true), busy(20, false)), (Leave::Drain, Leave::Drain));
    }

    #[test]
    fn the_processes_of_a_pool_go_one_after_the_other() {
        let waits = Leaver {
            has_turn: false,
            ..leaver(29)
        };
        assert_eq!(decide(waits), Leave::Stay);
    }

    proptest! {
        #[test]
        fn one_after_the_other_ends_after_half_a_minute(is_free: bool, has_turn: bool, has_others: bool, seconds in 30_u64..1_000) {
            let expected = if has_turn { Leave::End } else { Leave::Stay };
            prop_assert_eq!(decide(Leaver { is_free, has_turn, has_others, ..leaver(seconds) }), expected);
        }
    }
}
