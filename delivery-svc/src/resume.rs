//! The progress of a delivery, derived from the receipts that name it. *Pure.*
//!
//! A receipt belongs to the delivery whose id it has, and the newest of a delivery's receipts has its progress.
//! Sequences of `DELIVERIES` are never compared, because a work queue that is restored to an older state reuses them.
//! A place (sequence and time) only distinguishes two copies of one delivery: a delivery that was given up is
//! published again on purpose, perhaps with the sequence of the first copy.

use shared::model::receipt::{AttemptOutcome, PlanReference, Receipt, ReceiptStep};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::job::StreamPlace;

/// A receipt with the copy of the delivery to which it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReceipt {
    /// Place of the copy in `DELIVERIES`.
    pub copy: StreamPlace,
    /// Content of the receipt.
    pub receipt: Receipt,
}

/// A part that the platform has, but whose event may not be stored yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentPart {
    /// Index of the part, from 0.
    pub index: u32,
    /// Time it was sent, which is the receipt's time.
    pub at: UnixMillis,
    /// Platform's ids of its messages.
    pub platform_ids: Vec<String>,
    /// Whether the platform may have it twice.
    pub is_unconfirmed: bool,
}

/// The remaining work of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingWork {
    /// Number of the next attempt, from 1.
    pub attempt: u32,
    /// Number of attempts before it that do not count towards the maximum.
    pub uncounted: u32,
    /// Index of the first part to send, from 0.
    pub part: u32,
    /// Platform's ids of the messages of the parts before it, part by part.
    pub platform_ids: Vec<Vec<String>>,
    /// Indexes of the parts that the platform may have twice, or may have already.
    pub unconfirmed: Vec<u32>,
    /// Earliest time of the next attempt.
    pub not_before: UnixMillis,
    /// Part before it, whose event must be published (again) first.
    pub event_due: Option<SentPart>,
    /// The next call, if it was started before and no receipt has its outcome.
    pub begun: Option<OpenCall>,
    /// Plan whose parts are sent.
    pub plan: StandingPlan,
    /// Time of the receipt that has all this: a call that may have sent a part began at this time or before.
    pub recorded_at: UnixMillis,
}

/// The plan that the receipts of a delivery have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StandingPlan {
    /// None yet: no call was made, and the delivery is planned now.
    Unmade,
    /// One part, with the whole text.
    Whole,
    /// Several parts.
    Parts(PlanReference),
}

impl From<Option<PlanReference>> for StandingPlan {
    fn from(plan: Option<PlanReference>) -> Self {
        plan.map_or(Self::Whole, Self::Parts)
    }
}

impl StandingPlan {
    /// Returns the plan as receipts of attempts name it.
    #[must_use]
    pub fn reference(&self) -> Option<PlanReference> {
        match self {
            Self::Parts(plan) => Some(plan.clone()),
            Self::Unmade | Self::Whole => None,
        }
    }
}

/// A call that was started and has no known outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCall {
    /// Instance name of the replica that made it.
    pub by: String,
}

impl RemainingWork {
    /// The work of a delivery that was not started.
    pub const ALL: Self = Self {
        attempt: 1,
        uncounted: 0,
        part: 0,
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        not_before: UnixMillis(i64::MIN),
        event_due: None,
        begun: None,
        plan: StandingPlan::Unmade,
        recorded_at: UnixMillis(i64::MIN),
    };
}

/// The state of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryStanding {
    /// The delivery was completed before; its message must only be acknowledged.
    Past,
    /// The platform has all parts; the event of the last part may be missing.
    Delivered {
        /// Last part.
        last: SentPart,
        /// Plan to which it belongs.
        plan: StandingPlan,
    },
    /// The delivery was given up; its dead letter may be missing.
    GaveUp {
        /// Number of attempts that were made.
        attempts: u32,
        /// Reason for giving up.
        reason: String,
    },
    /// The send policy denied the delivery.
    Denied,
    /// Some work of the delivery remains.
    Open(RemainingWork),
    /// The state is unknown, because the receipts are older than the delivery.
    Unknown,
}

/// Returns the state of the copy of `delivery` at `place`, if `last` is the newest receipt that names the delivery.
#[must_use]
pub fn standing_after(delivery: Ulid, place: StreamPlace, last: Option<LastReceipt>) -> DeliveryStanding {
    // A receipt of another delivery says nothing about this one.
    let Some(last) = last.filter(|last| last.receipt.delivery == delivery) else {
        return DeliveryStanding::Open(RemainingWork::ALL);
    };
    // Another copy was published again on purpose, so a final failure of a former copy does not apply to it.
    let is_this_copy = last.copy == place;

    let at = last.receipt.at;
    match last.receipt.step {
        // It is of no copy.
        ReceiptStep::Preview { .. } => DeliveryStanding::Open(RemainingWork::ALL),
        // No call was made, so that the plan may still change.
        ReceiptStep::Planned { first, parts: _ } => DeliveryStanding::Open(RemainingWork {
            part: first,
            ..RemainingWork::ALL
        }),
        // The call was started and has no outcome: its owner may still know it.
        ReceiptStep::AttemptStarted {
            attempt,
            part,
            by,
            platform_ids,
            unconfirmed,
            uncounted,
            plan,
        } => DeliveryStanding::Open(RemainingWork {
            attempt,
            uncounted,
            part,
            platform_ids,
            unconfirmed,
            begun: Some(OpenCall { by }),
            plan: plan.into(),
            recorded_at: at,
            ..RemainingWork::ALL
        }),
        ReceiptStep::AttemptFinished {
            attempt,
            part,
            platform_ids,
            unconfirmed,
            uncounted,
            plan,
            outcome,
        } => {
            let ended = RemainingWork {
                attempt,
                uncounted,
                part,
                platform_ids,
                unconfirmed,
                plan: plan.into(),
                recorded_at: at,
                ..RemainingWork::ALL
            };
            standing_after_attempt(ended, at, outcome, is_this_copy)
        }
        // A copy of a delivered reply is not sent a second time.
        ReceiptStep::Delivered { .. } if !is_this_copy => DeliveryStanding::Past,
        ReceiptStep::Delivered {
            parts,
            platform_ids,
            unconfirmed,
            plan,
            ..
        } => DeliveryStanding::Delivered {
            last: sent_part(parts.saturating_sub(1), at, &platform_ids, &unconfirmed),
            plan: plan.into(),
        },
        ReceiptStep::GaveUp { attempts, reason } if is_this_copy => DeliveryStanding::GaveUp { attempts, reason },
        ReceiptStep::GaveUp { .. } => DeliveryStanding::Open(RemainingWork::ALL),
        ReceiptStep::DeniedByPolicy { .. } => DeliveryStanding::Denied,
    }
}

/// Returns the state after the attempt `ended`, of which the receipt of `at` tells the outcome.
fn standing_after_attempt(
    ended: RemainingWork,
    at: UnixMillis,
    outcome: AttemptOutcome,
    is_this_copy: bool,
) -> DeliveryStanding {
    let after = |after_ms: u64| at.plus(i64::try_from(after_ms).unwrap_or(i64::MAX));
    match outcome {
        // The part was sent; the event of it may not have been stored yet.
        AttemptOutcome::Done => DeliveryStanding::Open(RemainingWork {
            uncounted: attempts_before(ended.attempt),
            event_due: Some(sent_part(ended.part, at, &ended.platform_ids, &ended.unconfirmed)),
            part: ended.part.saturating_add(1),
            ..ended
        }),
        AttemptOutcome::Retry { after_ms, .. } => DeliveryStanding::Open(RemainingWork {
            attempt: ended.attempt.saturating_add(1),
            not_before: after(after_ms),
            ..ended
        }),
        AttemptOutcome::Limited { after_ms, .. } => DeliveryStanding::Open(RemainingWork {
            attempt: ended.attempt.saturating_add(1),
            uncounted: ended.uncounted.saturating_add(1),
            not_before: after(after_ms),
            ..ended
        }),
        AttemptOutcome::Refused { reason } if is_this_copy => DeliveryStanding::GaveUp {
            attempts: ended.attempt,
            reason,
        },
        AttemptOutcome::Refused { .. } => DeliveryStanding::Open(RemainingWork::ALL),
    }
}

/// Returns the number of attempts that no longer count once a part was sent at `attempt`: a later part has all of its
/// own.
pub const fn attempts_before(attempt: u32) -> u32 {
    attempt.saturating_sub(1)
}

/// Maximum number of ids of a part, and maximum size of one in bytes: every receipt of the delivery has all of them.
/// Others are not kept, so that no later message can refer to them.
const MAX_IDS: usize = 10;
const MAX_ID_BYTES: usize = 256;

/// Adds the platform's `ids` of the part `index` to those of the parts before it. Parts without ids need no entry.
pub fn keep_ids(platform_ids: &mut Vec<Vec<String>>, index: u32, mut ids: Vec<String>) {
    ids.retain(|id| !id.is_empty() && id.len() <= MAX_ID_BYTES);
    ids.truncate(MAX_IDS);
    if let (false, Ok(index)) = (ids.is_empty(), usize::try_from(index)) {
        platform_ids.resize(index, Vec::new());
        platform_ids.push(ids);
    }
}

/// Adds `part` to the parts that the platform may have twice, or may have already.
pub fn keep_doubt(unconfirmed: &mut Vec<u32>, part: u32) {
    if !unconfirmed.contains(&part) {
        unconfirmed.push(part);
    }
}

/// Returns the part `index`, sent at `at`, of a delivery with `platform_ids` and the parts `unconfirmed`.
#[must_use]
pub fn sent_part(index: u32, at: UnixMillis, platform_ids: &[Vec<String>], unconfirmed: &[u32]) -> SentPart {
    let own = usize::try_from(index).ok().and_then(|index| platform_ids.get(index));
    SentPart {
        index,
        at,
        platform_ids: own.cloned().unwrap_or_default(),
        is_unconfirmed: unconfirmed.contains(&index),
    }
}

#[cfg(test)]
mod tests;
