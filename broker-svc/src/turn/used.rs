//! How much of its time a running turn has used: the one place that counts it, for every runner. *Pure.*
//!
//! Time is counted while an owner works on the turn. It does not count while the turn waits for a human, and not
//! between two owners: each record of the ledger has the time that its writer had held the session by the boot-time
//! clock (`LedgerRecord::held_ms`), so that only times of one owner are subtracted from each other. No wall clock is
//! involved, except for the short time that an owner may have worked after its last record: see
//! [`UsedTime::taken_over`].

use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;

/// Divisor of a turn's wall time that gives the most that a change of owners counts: it is unknown how long the
/// former owner worked after its last record. A turn whose owners all die under it ends after ten of them.
const TAKE_OVER_PART: u64 = 10;

/// Time of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordTime {
    /// Time by the writer's wall clock.
    pub at: UnixMillis,
    /// Time that the writer had held the session, milliseconds.
    pub held_ms: u64,
}

/// Time that a running turn has used, according to the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedTime {
    /// Time used before the present stretch of work, milliseconds.
    before_ms: u64,
    /// Beginning of the present stretch in the owner's held time, milliseconds; none while the turn waits for a
    /// human.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since_ms: Option<u64>,
    /// The owner's held time at its last record, milliseconds.
    seen_ms: u64,
    /// The owner's wall clock at its last record.
    seen_at: UnixMillis,
}

impl UsedTime {
    /// Creates the used time of a turn that begins with the record `stamp`.
    #[must_use]
    pub const fn begin_at(stamp: RecordTime) -> Self {
        Self {
            before_ms: 0,
            since_ms: Some(stamp.held_ms),
            seen_ms: stamp.held_ms,
            seen_at: stamp.at,
        }
    }

    /// Returns the time used, milliseconds, when the owner of the last record has held the session for `held_ms`.
    #[must_use]
    pub fn at(&self, held_ms: u64) -> u64 {
        let stretch = self.since_ms.map_or(0, |since| held_ms.saturating_sub(since));
        self.before_ms.saturating_add(stretch)
    }

    /// Returns the time of the turn's last record, by its writer's wall clock.
    #[must_use]
    pub const fn recorded_at(&self) -> UnixMillis {
        self.seen_at
    }

    /// Notes that the owner wrote a record.
    pub const fn note_record(&mut self, stamp: RecordTime) {
        self.seen_ms = stamp.held_ms;
        self.seen_at = stamp.at;
    }

    /// Stops counting, because the turn begins to wait for a human with the record `stamp`.
    pub fn suspend_at(&mut self, stamp: RecordTime) {
        self.before_ms = self.at(stamp.held_ms);
        self.since_ms = None;
    }

    /// Counts again, because the turn goes on with the record `stamp`.
    pub fn resume_at(&mut self, stamp: RecordTime) {
        self.since_ms.get_or_insert(stamp.held_ms);
    }

    /// Notes the first record, `stamp`, of a new owner. The time that the former owner used is known up to its last
    /// record; after that it is at most the time until now, and counts as at most a tenth of `wall_ms`.
    pub fn taken_over(&mut self, stamp: RecordTime, wall_ms: u64) {
        if self.since_ms.is_some() {
            let passed = u64::try_from(stamp.at.since(self.seen_at)).unwrap_or(0);
            let unknown = passed.min(wall_ms / TAKE_OVER_PART);
            self.before_ms = self.at(self.seen_ms).saturating_add(unknown);
            self.since_ms = Some(stamp.held_ms);
        }
        self.note_record(stamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: u64 = 600_000;

    fn stamp(at: i64, held_ms: u64) -> RecordTime {
        RecordTime {
            at: UnixMillis(at),
            held_ms,
        }
    }

    #[test]
    fn work_counts_and_waiting_for_a_human_does_not() {
        let mut used = UsedTime::begin_at(stamp(1_000, 50));
        assert_eq!(used.at(1_050), 1_000);
        used.suspend_at(stamp(2_000, 1_050));
        assert_eq!(used.at(86_400_000), 1_000);
        used.resume_at(stamp(90_000_000, 5_000));
        assert_eq!(used.at(5_500), 1_500);
    }

    #[test]
    fn a_day_between_two_owners_counts_as_a_tenth_of_the_limit_and_a_second_as_a_second() {
        for (away, counts) in [(1_000, 1_000), (86_400_000, WALL / 10), (-5_000, 0)] {
            let mut used = UsedTime::begin_at(stamp(0, 100));
            used.note_record(stamp(3_000, 3_100));
            // The next owner's clocks have nothing to do with the former's.
            used.taken_over(stamp(3_000 + away, 7), WALL);
            assert_eq!(used.at(507), 3_000 + counts + 500, "away for {away} ms");
        }
    }

    #[test]
    fn owners_that_come_while_a_human_is_asked_use_nothing() {
        let mut used = UsedTime::begin_at(stamp(0, 0));
        used.suspend_at(stamp(2_000, 2_000));
        used.taken_over(stamp(80_000_000, 9), WALL);
        used.taken_over(stamp(90_000_000, 3), WALL);
        assert_eq!(used.at(70_000), 2_000);
        used.resume_at(stamp(90_000_500, 503));
        assert_eq!(used.at(600), 2_097);
    }

    #[test]
    fn a_wall_clock_that_is_set_changes_nothing_within_one_owner() {
        let mut used = UsedTime::begin_at(stamp(1_000_000, 0));
        used.note_record(stamp(90_000_000, 200));
        used.suspend_at(stamp(5, 300));
        used.resume_at(stamp(90_000_000, 400));
        assert_eq!(used.at(450), 350);
    }

    #[test]
    fn a_turn_whose_owners_keep_dying_ends() {
        let mut used = UsedTime::begin_at(stamp(0, 0));
        let mut owners = 0;
        while used.at(0) < WALL {
            owners += 1;
            used.taken_over(stamp(owners * 10 * 600_000, 0), WALL);
        }
        assert_eq!(owners, 10);
    }
}
