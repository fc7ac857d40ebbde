//! The sweeper's walk over a part of `DISPATCHES`: the sequences that it has read, and the subjects that may not be
//! settled. *Pure.*
//!
//! Everything up to [`SweepState::floor`] is settled: consumed by its session. The walk itself may be far ahead of the
//! floor, so that one slow session does not cause everything behind it to be read again.

use std::collections::BTreeMap;

use shared::model::ledger::LedgerCursor;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;

/// Maximum number of open subjects of a part; the walk waits while there are more.
pub const MAX_OPEN: usize = 4_096;
/// Time for which a subject is left alone after a look, milliseconds.
pub const LOOK_AGAIN_MS: i64 = 3_000;

/// Time for which a session is left alone after it was woken for unanswered intents, milliseconds.
pub const ASK_AGAIN_MS: i64 = 10_000;

/// A subject with dispatches that are not known to be consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    first: u64,
    last: u64,
    look_at: UnixMillis,
    /// Sequence through which the session was woken although it waits.
    woken: u64,
}

/// A session to look at: whether it has consumed everything through `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSession {
    /// The session to look at.
    pub session: SessionRef,
    /// Sequence of its newest dispatch that is old enough.
    pub last: u64,
}

/// Progress of the sweeper in one part.
#[derive(Debug, Clone, Default)]
pub struct SweepState {
    through: u64,
    open: BTreeMap<SessionRef, Open>,
}

impl SweepState {
    /// Creates a walk that begins after `floor`.
    #[must_use]
    pub fn from_floor(floor: u64) -> Self {
        Self {
            through: floor,
            open: BTreeMap::new(),
        }
    }

    /// Returns the first sequence that was not walked over.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.through + 1
    }

    /// Returns whether more may be read: if there are too many open subjects, those are looked at first.
    #[must_use]
    pub fn may_go_on(&self) -> bool {
        self.open.len() < MAX_OPEN
    }

    /// Notes that everything through `sequence` needs no second look, apart from open subjects.
    pub fn mark_passed(&mut self, sequence: u64) {
        self.through = self.through.max(sequence);
    }

    /// Notes that `session` has a dispatch at `sequence` that is not known to be consumed.
    pub fn add(&mut self, session: SessionRef, sequence: u64) {
        self.mark_passed(sequence);
        let open = Open {
            first: sequence,
            last: sequence,
            look_at: UnixMillis(0),
            woken: 0,
        };

        self.open
            .entry(session)
            .and_modify(|open| open.last = sequence)
            .or_insert(open);
    }

    /// Returns up to `limit` sessions to look at now, those first that have waited longest: each has its turn,
    /// independent of its name.
    #[must_use]
    pub fn due_sessions(&self, now: UnixMillis, limit: usize) -> Vec<DueSession> {
        let mut due: Vec<_> = self.open.iter().filter(|(_, open)| open.look_at <= now).collect();
        due.sort_by_key(|(_, open)| open.look_at);
        due.into_iter()
            .take(limit)
            .map(|(session, open)| DueSession {
                session: session.clone(),
                last: open.last,
            })
            .collect()
    }

    /// Notes that `session` has the cursor `cursor`. Returns whether it has consumed everything that the walk knows
    /// of.
    pub fn note_seen(&mut self, session: &SessionRef, cursor: &LedgerCursor, now: UnixMillis) -> bool {
        let Some(open) = self.open.get_mut(session) else {
            return true;
        };

        // A dispatch above the floor may be consumed while one below it is not.
        if cursor.floor >= open.last {
            self.open.remove(session);
            return true;
        }

        open.first = open.first.max(cursor.floor + 1);
        open.look_at = now.plus(LOOK_AGAIN_MS);

        false
    }

    /// Returns whether `due` has a newer dispatch than at the last call.
    pub fn is_new(&mut self, due: &DueSession) -> bool {
        let Some(open) = self.open.get_mut(&due.session) else {
            return false;
        };
        let newer = open.woken < due.last;
        open.woken = due.last;
        newer
    }

    /// Notes that another process is busy with `session`: look later.
    pub fn look_later(&mut self, session: &SessionRef, now: UnixMillis) {
        if let Some(open) = self.open.get_mut(session) {
            open.look_at = now.plus(LOOK_AGAIN_MS);
        }
    }

    /// Notes that `session` has unanswered intents, although it has consumed everything: it stays open.
    pub fn note_owing(&mut self, session: &SessionRef, now: UnixMillis) {
        if let Some(open) = self.open.get_mut(session) {
            open.look_at = now.plus(ASK_AGAIN_MS);
        }
    }

    /// Removes `session`, which must not be looked at (it is quarantined).
    pub fn leave_out(&mut self, session: &SessionRef) {
        self.open.remove(session);
    }

    /// Returns the sequence up to which everything is settled.
    #[must_use]
    pub fn floor(&self) -> u64 {
        let lowest = self.open.values().map(|open| open.first).min();
        lowest.map_or(self.through, |first| self.through.min(first - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str) -> SessionRef {
        SessionRef {
            persona: "default".to_owned(),
            session: name.to_owned(),
        }
    }

    fn at(floor: u64) -> LedgerCursor {
        LedgerCursor {
            floor,
            above: Vec::new(),
            ..LedgerCursor::default()
        }
    }

    #[test]
    fn the_floor_waits_for_the_slowest_and_the_walk_does_not() {
        let mut walk = SweepState::from_floor(10);
        walk.add(session("slow"), 11);
        walk.add(session("fast"), 12);
        walk.add(session("slow"), 15);
        walk.mark_passed(20);

        assert_eq!((walk.floor(), walk.next()), (10, 21));
        assert!(walk.note_seen(&session("fast"), &at(12), UnixMillis(0)));
        assert!(!walk.note_seen(&session("slow"), &at(11), UnixMillis(0)));
        assert_eq!(walk.floor(), 11);
        assert!(walk.note_seen(&session("slow"), &at(15), UnixMillis(0)));
        assert_eq!(walk.floor(), 20);
    }

    #[test]
    fn a_session_that_overtook_one_of_its_own_is_not_settled() {
        let mut walk = SweepState::from_floor(10);
        walk.add(session("a"), 11);
        walk.add(session("a"), 15);
        let overtaken = LedgerCursor {
            floor: 10,
            above: vec![15],
            ..LedgerCursor::default()
        };

        assert!(!walk.note_seen(&session("a"), &overtaken, UnixMillis(0)));
        assert_eq!(
            (walk.floor(), walk.due_sessions(UnixMillis(LOOK_AGAIN_MS), 1).len()),
            (10, 1)
        );
    }

    #[test]
    fn every_session_has_its_turn_whatever_its_name() {
        let mut walk = SweepState::default();
        for (sequence, name) in [(1, "a"), (2, "b"), (3, "c")] {
            walk.add(session(name), sequence);
        }

        let mut seen = Vec::new();
        for round in 0..3 {
            let now = UnixMillis(round * LOOK_AGAIN_MS);
            let due = walk.due_sessions(now, 1).remove(0);
            walk.look_later(&due.session, now);
            seen.push(due.session.session);
        }

        assert_eq!(seen, ["a", "b", "c"]);
    }

    #[test]
    fn a_session_that_was_looked_at_is_left_alone_for_a_while() {
        let mut walk = SweepState::default();
        walk.add(session("a"), 1);
        walk.add(session("b"), 2);

        assert_eq!(
            walk.due_sessions(UnixMillis(0), 1),
            [DueSession {
                session: session("a"),
                last: 1
            }]
        );

        walk.note_seen(&session("a"), &at(0), UnixMillis(0));
        assert_eq!(walk.due_sessions(UnixMillis(1), 9).len(), 1);
        assert_eq!(walk.due_sessions(UnixMillis(LOOK_AGAIN_MS), 9).len(), 2);

        walk.leave_out(&session("a"));
        assert_eq!(walk.floor(), 1);
    }
}
