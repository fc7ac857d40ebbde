//! Where a delivery stands, told by the receipts that name it. *Pure.*
//!
//! A receipt belongs to the delivery whose id it carries, and the newest of a delivery's receipts says how far it came.
//! Nothing is told by comparing sequences of `DELIVERIES`: a work queue that is put back to an older state gives them out
//! again. A place, sequence and time, only tells two copies of one delivery apart: one that was given up comes again on
//! purpose, perhaps at the sequence that the first copy had.

use shared::model::receipt::{AttemptOutcome, Receipt, ReceiptStep};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::job::Place;

/// A receipt, and of which copy of the delivery it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReceipt {
    /// Where the copy that it belongs to stood in `DELIVERIES`.
    pub copy: Place,
    /// What it says.
    pub receipt: Receipt,
}

/// A part that is with the platform while its event may not be stored yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentPart {
    /// First part = 0.
    pub index: u32,
    /// When it was sent: the receipt's time.
    pub at: UnixMillis,
}

/// What is still to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remaining {
    /// Number of the next attempt, first = 1.
    pub attempt: u32,
    /// The part it begins with, first = 0.
    pub part: u32,
    /// The platform's ids of the parts before it.
    pub platform_ids: Vec<String>,
    /// Not sooner than this.
    pub not_before: UnixMillis,
    /// The part before it, whose event must be published (again) first.
    pub event_due: Option<SentPart>,
    /// The call that comes next was begun before, and no receipt says how it ended.
    pub begun: Option<Begun>,
}

/// A call without an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The replica that made it.
    pub by: String,
}

impl Remaining {
    /// Everything.
    pub const ALL: Self = Self {
        attempt: 1,
        part: 0,
        platform_ids: Vec::new(),
        not_before: UnixMillis(i64::MIN),
        event_due: None,
        begun: None,
    };
}

/// Where a delivery stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It was made before: nothing is left to do but to acknowledge.
    Past,
    /// All parts are with the platform; the last part's event may be missing.
    Delivered(SentPart),
    /// Given up; the dead letter may be missing.
    GaveUp {
        /// After how many attempts.
        attempts: u32,
        /// Why.
        reason: String,
    },
    /// The policy denied it.
    Denied,
    /// Something is left to do.
    Open(Remaining),
    /// Nobody can tell: the receipts are older than the delivery.
    Unknown,
}

/// Where `delivery`, whose copy at `place` it is about, stands, if `last` is the newest receipt that names it.
#[must_use]
pub fn standing(delivery: Ulid, place: Place, last: Option<LastReceipt>) -> Standing {
    let Some(last) = last.filter(|last| last.receipt.delivery == delivery) else {
        return Standing::Open(Remaining::ALL);
    };
    let is_this_copy = last.copy == place;

    let at = last.receipt.at;
    match last.receipt.step {
        ReceiptStep::AttemptStarted { attempt, part, by } => Standing::Open(Remaining {
            attempt,
            part,
            begun: Some(Begun { by }),
            ..Remaining::ALL
        }),
        ReceiptStep::AttemptFinished {
            attempt,
            part,
            platform_ids,
            outcome,
        } => match outcome {
            AttemptOutcome::Done => Standing::Open(Remaining {
                attempt,
                part: part.saturating_add(1),
                platform_ids,
                event_due: Some(SentPart { index: part, at }),
                ..Remaining::ALL
            }),
            AttemptOutcome::Retry { after_ms, .. } => Standing::Open(Remaining {
                attempt: attempt.saturating_add(1),
                part,
                platform_ids,
                not_before: at.plus(i64::try_from(after_ms).unwrap_or(i64::MAX)),
                ..Remaining::ALL
            }),
            AttemptOutcome::Refused { reason } if is_this_copy => Standing::GaveUp {
                attempts: attempt,
                reason,
            },
            AttemptOutcome::Refused { .. } => Standing::Open(Remaining::ALL),
        },
        ReceiptStep::Delivered { .. } if !is_this_copy => Standing::Past,
        ReceiptStep::Delivered { parts, .. } => Standing::Delivered(SentPart {
            index: parts.saturating_sub(1),
            at,
        }),
        ReceiptStep::GaveUp { attempts, reason } if is_this_copy => Standing::GaveUp { attempts, reason },
        ReceiptStep::GaveUp { .. } => Standing::Open(Remaining::ALL),
        ReceiptStep::DeniedByPolicy { .. } => Standing::Denied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::reply;

    const AT: UnixMillis = UnixMillis(1_000);

    const MINE: Ulid = Ulid::from_parts(5, 5);

    const fn at(sequence: u64) -> Place {
        Place {
            sequence,
            stored_at_ns: 9,
        }
    }

    fn of(delivery: Ulid, copy: Place, step: ReceiptStep) -> Option<LastReceipt> {
        let reply = reply("x");
        let receipt = Receipt {
            delivery,
            session: reply.session,
            target: reply.delivery_context,
            causation: reply.causation,
            at: AT,
            step,
        };

        Some(LastReceipt { copy, receipt })
    }

    fn last(sequence: u64, step: ReceiptStep) -> Option<LastReceipt> {
        of(MINE, at(sequence), step)
    }

    fn delivered() -> ReceiptStep {
        ReceiptStep::Delivered {
            attempts: 1,
            parts: 2,
            platform_ids: Vec::new(),
            live: None,
        }
    }

    fn finished(outcome: AttemptOutcome) -> ReceiptStep {
        ReceiptStep::AttemptFinished {
            attempt: 3,
            part: 1,
            platform_ids: vec!["a".to_owned()],
            outcome,
        }
    }

    #[test]
    fn receipts_of_other_deliveries_tell_nothing_whatever_their_sequence() {
        let other = reply("x").id;
        assert_eq!(standing(MINE, at(5), None), Standing::Open(Remaining::ALL));
        for sequence in [4, 5, 6, 4_000] {
            let told = standing(MINE, at(5), of(other, at(sequence), delivered()));
            assert_eq!(told, Standing::Open(Remaining::ALL), "{sequence}");
        }
    }

    #[test]
    fn a_second_copy_of_a_made_delivery_is_made_and_of_a_given_up_one_is_not() {
        for sequence in [4, 6] {
            let made = standing(MINE, at(5), last(sequence, delivered()));
            assert_eq!(made, Standing::Past, "{sequence}");

            let gave_up = ReceiptStep::GaveUp {
                attempts: 8,
                reason: "gone".to_owned(),
            };
            let told = standing(MINE, at(5), last(sequence, gave_up));
            assert_eq!(told, Standing::Open(Remaining::ALL), "{sequence}");
        }
    }

    #[test]
    fn another_copy_at_the_same_sequence_of_a_queue_that_was_put_back_is_another_copy() {
        let again = Place {
            stored_at_ns: 10,
            ..at(5)
        };
        let gave_up = ReceiptStep::GaveUp {
            attempts: 8,
            reason: "gone".to_owned(),
        };

        assert_eq!(standing(MINE, again, last(5, gave_up)), Standing::Open(Remaining::ALL));
        assert_eq!(standing(MINE, again, last(5, delivered())), Standing::Past);
    }

    #[test]
    fn settled() {
        assert_eq!(
            standing(MINE, at(5), last(5, delivered())),
            Standing::Delivered(SentPart { index: 1, at: AT })
        );

        let gave_up = ReceiptStep::GaveUp {
            attempts: 8,
            reason: "gone".to_owned(),
        };
        assert_eq!(
            standing(MINE, at(5), last(5, gave_up)),
            Standing::GaveUp {
                attempts: 8,
                reason: "gone".to_owned()
            }
        );

        let denied = ReceiptStep::DeniedByPolicy {
            rule: "default".to_owned(),
        };
        assert_eq!(standing(MINE, at(5), last(5, denied)), Standing::Denied);
    }

    #[test]
    fn a_failed_attempt_waits_from_its_receipt() {
        let retry = AttemptOutcome::Retry {
            after_ms: 500,
            reason: "busy".to_owned(),
        };
        let expected = Remaining {
            attempt: 4,
            part: 1,
            platform_ids: vec!["a".to_owned()],
            not_before: UnixMillis(1_500),
            ..Remaining::ALL
        };

        assert_eq!(
            standing(MINE, at(5), last(5, finished(retry))),
            Standing::Open(expected)
        );
    }

    #[test]
    fn a_part_that_is_out_is_not_sent_again() {
        let expected = Remaining {
            attempt: 3,
            part: 2,
            platform_ids: vec!["a".to_owned()],
            event_due: Some(SentPart { index: 1, at: AT }),
            ..Remaining::ALL
        };

        assert_eq!(
            standing(MINE, at(5), last(5, finished(AttemptOutcome::Done))),
            Standing::Open(expected)
        );
    }

    #[test]
    fn a_call_without_an_outcome_is_told_with_whoever_made_it() {
        let by = "a".to_owned();
        let expected = Remaining {
            attempt: 2,
            begun: Some(Begun { by: by.clone() }),
            ..Remaining::ALL
        };

        let started = ReceiptStep::AttemptStarted {
            attempt: 2,
            part: 0,
            by,
        };
        assert_eq!(standing(MINE, at(5), last(5, started)), Standing::Open(expected));
    }
}
