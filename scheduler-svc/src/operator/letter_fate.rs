//! The fate of a dead letter, by its records, and its consequence for a request. *Pure.*
//!
//! The records of a letter's number are one row, in which each expects the one before. So of two operators who want
//! different things one is first, and a request that is repeated, by whomever, finds how far the first one came.

use shared::model::position::{FoundPosition, StreamPlace, StreamPosition, judge_position};
use shared::model::time::UnixMillis;
use shared::wire::operator::letters::{LetterRecord, LetterStep};
use ulid::Ulid;

/// The fate of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetterFate {
    /// No operation that was begun stands.
    Untouched,
    /// Its message may have been published again.
    Redriving {
        /// Id of the operation.
        operation: Ulid,
    },
    /// Its message is published again.
    Redriven {
        /// Subject of the message.
        subject: String,
        /// Stream of the message.
        stream: String,
        /// Where the message is.
        position: StreamPosition,
    },
    /// It is not published again.
    Dropped {
        /// Operator that asked for that.
        by: String,
        /// When.
        at: UnixMillis,
        /// Service that gave the message up.
        service: String,
        /// Reason in one word.
        reason: String,
    },
}

/// Returns the letter of the newest of `records`, all of one number.
#[must_use]
pub fn newest_letter(records: &[LetterRecord]) -> Option<StreamPlace> {
    records.last().map(|record| record.letter)
}

/// Returns what became of `letter`, by the `records` of its number, oldest first. A restored stream gives a number to
/// another letter, whose records count for it alone.
#[must_use]
pub fn fate_of(letter: StreamPlace, records: &[LetterRecord]) -> LetterFate {
    let own = records.iter().rev().find(|record| record.letter == letter);
    match own.map(|record| (record, &record.step)) {
        None | Some((_, LetterStep::RedriveRefused { .. })) => LetterFate::Untouched,
        Some((record, LetterStep::RedriveBegun { .. })) => LetterFate::Redriving {
            operation: record.operation,
        },
        Some((
            _,
            LetterStep::Redriven {
                subject,
                stream,
                position,
            },
        )) => LetterFate::Redriven {
            subject: subject.clone(),
            stream: stream.clone(),
            position: position.clone(),
        },
        Some((record, LetterStep::Dropped { service, reason })) => LetterFate::Dropped {
            by: record.by.clone(),
            at: record.at,
            service: service.clone(),
            reason: reason.clone(),
        },
    }
}

/// The step that follows a request to redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedriveStep {
    /// The redrive is recorded, and then its message published.
    Begin,
    /// A redrive that was begun goes on: its message is looked for, and published if it is not there.
    GoOn(Ulid),
    /// It was done before: if the message is still there, the dead letter is deleted, else a redrive begins.
    Confirm,
    /// It was done before, and the dead letter is gone.
    Answer,
    /// The dead letter was or is being dropped.
    IsDropped,
    /// There is no such dead letter.
    Absent,
}

/// Returns the step that follows a request to redrive a letter that `is_there` or not.
#[must_use]
pub const fn redrive_step(fate: &LetterFate, is_there: bool) -> RedriveStep {
    match (fate, is_there) {
        (LetterFate::Untouched, true) => RedriveStep::Begin,
        (LetterFate::Redriving { operation }, true) => RedriveStep::GoOn(*operation),
        (LetterFate::Redriven { .. }, true) => RedriveStep::Confirm,
        (LetterFate::Redriven { .. }, false) => RedriveStep::Answer,
        (LetterFate::Dropped { .. }, _) => RedriveStep::IsDropped,
        (LetterFate::Untouched | LetterFate::Redriving { .. }, false) => RedriveStep::Absent,
    }
}

/// The step that follows a request to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropStep {
    /// It is recorded, and then the dead letter deleted.
    Begin,
    /// It is recorded: the dead letter is deleted.
    GoOn,
    /// It was done before.
    Answer,
    /// Its message was published again: if it is still there, the dead letter is deleted as the redrive does it, else dropped.
    Confirm,
    /// A redrive was begun, and has to be ended: its message may have been published.
    IsRedriving,
    /// There is no such dead letter.
    Absent,
}

/// Returns the step that follows a request to drop a letter that `is_there` or not.
#[must_use]
pub const fn drop_step(fate: &LetterFate, is_there: bool) -> DropStep {
    match (fate, is_there) {
        (LetterFate::Untouched, true) => DropStep::Begin,
        // Its redrive is about to delete it, or it is there again in a stream that was put back.
        (LetterFate::Redriven { .. }, true) => DropStep::Confirm,
        (LetterFate::Dropped { .. }, true) => DropStep::GoOn,
        (LetterFate::Dropped { .. }, false) => DropStep::Answer,
        (LetterFate::Redriving { .. }, true) => DropStep::IsRedriving,
        (LetterFate::Untouched | LetterFate::Redriving { .. } | LetterFate::Redriven { .. }, false) => DropStep::Absent,
    }
}

/// Returns whether the message that was stored at `position` still counts in its stream, which is as `found` says and
/// ends at `last`. A message that is gone was worked off: queues are emptied, and old messages end. A stream that was made
/// anew, or put back to before it, has lost it.
#[must_use]
pub fn is_still_published(position: &StreamPosition, last: u64, found: &FoundPosition<'_>) -> bool {
    if last < position.sequence {
        return false;
    }

    // The time is not known of a message that was worked off before it could be looked up.
    let compared = found.stored_at_ns.filter(|_| position.stored_at_ns != 0);
    let found = FoundPosition {
        stored_at_ns: compared.or(Some(position.stored_at_ns)),
        ..*found
    };
    judge_position(position, &found).holds()
}

#[cfg(test)]
mod tests {
    use shared::model::position::StreamLineage;

    use super::*;

    const LETTER: StreamPlace = StreamPlace {
        sequence: 7,
        stored_at_ns: 700,
    };

    fn record(letter: StreamPlace, step: LetterStep) -> LetterRecord {
        LetterRecord {
            letter,
            operation: Ulid::from_parts(1, 2),
            by: "anna".to_owned(),
            at: UnixMillis(5),
            step,
        }
    }

    fn begun() -> LetterStep {
        LetterStep::RedriveBegun {
            subject: "nexus.event.a.b.c".to_owned(),
            service: "hook-svc".to_owned(),
            reason: "malformed".to_owned(),
        }
    }

    fn redriven() -> LetterStep {
        LetterStep::Redriven {
            subject: "nexus.event.a.b.c".to_owned(),
            stream: "EVENTS".to_owned(),
            position: position(),
        }
    }

    fn dropped() -> LetterStep {
        LetterStep::Dropped {
            service: "hook-svc".to_owned(),
            reason: "malformed".to_owned(),
        }
    }

    fn refused() -> LetterStep {
        LetterStep::RedriveRefused {
            error: "too large".to_owned(),
        }
    }

    fn position() -> StreamPosition {
        StreamPosition {
            incarnation: "a".to_owned(),
            sequence: 20,
            stored_at_ns: 900,
        }
    }

    /// Whatever was recorded, at most one of the two wishes can still be met, and none is met twice.
    #[test]
    fn the_records_decide_what_a_request_does() {
        use {DropStep as D, RedriveStep as R};
        let go_on = R::GoOn(Ulid::from_parts(1, 2));
        for (steps, there, gone) in [
            (vec![], (R::Begin, D::Begin), (R::Absent, D::Absent)),
            (vec![begun()], (go_on, D::IsRedriving), (R::Absent, D::Absent)),
            (vec![begun(), refused()], (R::Begin, D::Begin), (R::Absent, D::Absent)),
            (
                vec![begun(), redriven()],
                (R::Confirm, D::Confirm),
                (R::Answer, D::Absent),
            ),
            (vec![dropped()], (R::IsDropped, D::GoOn), (R::IsDropped, D::Answer)),
            (
                vec![begun(), refused(), dropped()],
                (R::IsDropped, D::GoOn),
                (R::IsDropped, D::Answer),
            ),
        ] {
            let records: Vec<LetterRecord> = steps.into_iter().map(|step| record(LETTER, step)).collect();
            let fate = fate_of(LETTER, &records);
            assert_eq!((redrive_step(&fate, true), drop_step(&fate, true)), there, "{fate:?}");
            assert_eq!((redrive_step(&fate, false), drop_step(&fate, false)), gone, "{fate:?}");
        }
    }

    #[test]
    fn another_letter_with_the_same_number_has_a_fate_of_its_own() {
        let other = StreamPlace {
            stored_at_ns: 701,
            ..LETTER
        };
        let records = [record(LETTER, dropped()), record(other, begun())];
        assert!(matches!(fate_of(LETTER, &records), LetterFate::Dropped { .. }));
        assert!(matches!(fate_of(other, &records), LetterFate::Redriving { .. }));
        assert_eq!(newest_letter(&records), Some(other));
    }

    #[test]
    fn a_message_that_was_worked_off_is_published_and_one_of_a_lost_stream_is_not() {
        let check = |position: &StreamPosition, incarnation: &str, last, stored_at_ns| {
            let found = FoundPosition {
                incarnation,
                lineage: &StreamLineage::default(),
                first: 1,
                stored_at_ns,
            };
            is_still_published(position, last, &found)
        };

        assert!(check(&position(), "a", 20, Some(900)));
        assert!(check(&position(), "a", 30, None), "worked off");
        assert!(!check(&position(), "a", 19, None), "put back");
        assert!(!check(&position(), "a", 30, Some(901)), "and grown since");
        assert!(!check(&position(), "b", 30, Some(900)), "made anew");

        let unseen = StreamPosition {
            stored_at_ns: 0,
            ..position()
        };
        assert!(check(&unseen, "a", 30, Some(5)), "its time is not known");
    }
}
