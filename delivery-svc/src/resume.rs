//! Where a delivery stands, told by the last receipt of its destination. *Pure.*
//!
//! A destination's deliveries are settled strictly in the order of `DELIVERIES`, and every receipt carries the sequence
//! of the delivery it belongs to. So the *last* receipt of the destination's subject tells everything: if it belongs to
//! a later delivery, ours was settled, its event published, and only the acknowledgement was lost; if it belongs to an
//! earlier one, ours was never begun; if it is ours, it says how far we came.

use shared::model::receipt::{AttemptOutcome, Receipt, ReceiptStep};
use shared::model::time::UnixMillis;
use ulid::Ulid;

/// The last receipt of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReceipt {
    /// Sequence in `DELIVERIES` of the delivery it belongs to.
    pub delivery_sequence: u64,
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
    /// A call was begun and nobody knows how it ended.
    pub unconfirmed: bool,
}

impl Remaining {
    /// Everything.
    pub const ALL: Self = Self {
        attempt: 1,
        part: 0,
        platform_ids: Vec::new(),
        not_before: UnixMillis(i64::MIN),
        event_due: None,
        unconfirmed: false,
    };
}

/// Where a delivery stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// A later delivery of the destination has receipts: nothing is left to do but to acknowledge.
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
}

impl LastReceipt {
    /// Whether it says that `delivery` was made: a second copy of it, published again, needs no second call. (One that
    /// was given up may come again on purpose: redriven.)
    #[must_use]
    pub fn made(&self, delivery: Ulid) -> bool {
        self.receipt.delivery == delivery && matches!(self.receipt.step, ReceiptStep::Delivered { .. })
    }
}

/// Where `delivery`, which has `sequence` in `DELIVERIES`, stands, if `last` is its destination's last receipt.
#[must_use]
pub fn standing(delivery: Ulid, sequence: u64, last: Option<LastReceipt>) -> Standing {
    let Some(last) = last else {
        return Standing::Open(Remaining::ALL);
    };
    if last.delivery_sequence > sequence {
        return Standing::Past;
    }
    if last.delivery_sequence < sequence {
        return if last.made(delivery) {
            Standing::Past
        } else {
            Standing::Open(Remaining::ALL)
        };
    }
    let at = last.receipt.at;
    match last.receipt.step {
        ReceiptStep::AttemptStarted { attempt, part } => Standing::Open(Remaining {
            attempt,
            part,
            unconfirmed: true,
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
            AttemptOutcome::Refused { reason } => Standing::GaveUp {
                attempts: attempt,
                reason,
            },
        },
        ReceiptStep::Delivered { parts, .. } => Standing::Delivered(SentPart {
            index: parts.saturating_sub(1),
            at,
        }),
        ReceiptStep::GaveUp { attempts, reason } => Standing::GaveUp { attempts, reason },
        ReceiptStep::DeniedByPolicy { .. } => Standing::Denied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::reply;

    const AT: UnixMillis = UnixMillis(1_000);

    const MINE: Ulid = Ulid::from_parts(5, 5);

    fn last(delivery_sequence: u64, step: ReceiptStep) -> Option<LastReceipt> {
        let reply = reply("x");
        let receipt = Receipt {
            delivery: if delivery_sequence == 5 { MINE } else { reply.id },
            session: reply.session,
            target: reply.delivery_context,
            causation: reply.causation,
            at: AT,
            step,
        };
        Some(LastReceipt {
            delivery_sequence,
            receipt,
        })
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
    fn earlier_and_later_deliveries() {
        assert_eq!(standing(MINE, 5, None), Standing::Open(Remaining::ALL));
        assert_eq!(standing(MINE, 5, last(4, delivered())), Standing::Open(Remaining::ALL));
        assert_eq!(standing(MINE, 5, last(6, delivered())), Standing::Past);
        assert_eq!(
            standing(MINE, 5, last(6, ReceiptStep::AttemptStarted { attempt: 1, part: 0 })),
            Standing::Past
        );
    }

    #[test]
    fn a_second_copy_of_a_made_delivery_is_past_and_of_a_given_up_one_is_not() {
        let other = reply("x").id;
        assert_eq!(standing(other, 5, last(4, delivered())), Standing::Past);
        let gave_up = ReceiptStep::GaveUp {
            attempts: 8,
            reason: "gone".to_owned(),
        };
        assert_eq!(standing(other, 5, last(4, gave_up)), Standing::Open(Remaining::ALL));
    }

    #[test]
    fn settled() {
        assert_eq!(
            standing(MINE, 5, last(5, delivered())),
            Standing::Delivered(SentPart { index: 1, at: AT })
        );
        let gave_up = ReceiptStep::GaveUp {
            attempts: 8,
            reason: "gone".to_owned(),
        };
        assert_eq!(
            standing(MINE, 5, last(5, gave_up)),
            Standing::GaveUp {
                attempts: 8,
                reason: "gone".to_owned()
            }
        );
        let denied = ReceiptStep::DeniedByPolicy {
            rule: "default".to_owned(),
        };
        assert_eq!(standing(MINE, 5, last(5, denied)), Standing::Denied);
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
        assert_eq!(standing(MINE, 5, last(5, finished(retry))), Standing::Open(expected));
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
            standing(MINE, 5, last(5, finished(AttemptOutcome::Done))),
            Standing::Open(expected)
        );
    }

    #[test]
    fn a_call_without_an_outcome_is_unconfirmed() {
        let expected = Remaining {
            attempt: 2,
            unconfirmed: true,
            ..Remaining::ALL
        };
        let started = ReceiptStep::AttemptStarted { attempt: 2, part: 0 };
        assert_eq!(standing(MINE, 5, last(5, started)), Standing::Open(expected));
    }
}
