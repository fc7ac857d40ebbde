//! Decisions that a restore leaves open: deliveries that may already have been made. *Pure.* Source:
//! `docs/design/trust.md` §2.4.

use serde::{Deserialize, Serialize};

use super::position::StreamPlace;
use super::time::UnixMillis;

/// Key of the only [`RestoreHold`] in the bucket `restore`.
pub const HOLD_KEY: &str = "hold";

/// A hold on deliveries whose turns are as old as a restored backup: they wait until the operator decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreHold {
    /// Name of the restored backup.
    pub backup: String,
    /// End of the backup. A younger turn cannot have been delivered before.
    pub until: UnixMillis,
    /// Time of the restore. Older entries come from the backup, and no queue has lost them. `None` = unknown, and no
    /// entry may be treated as older.
    pub at: Option<UnixMillis>,
    /// The operator's decision so far.
    pub decision: HoldDecision,
}

/// The operator's decision about the waiting deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum HoldDecision {
    /// No decision yet: the deliveries wait.
    Waiting,
    /// The deliveries are sent.
    Send,
    /// Deliveries that were in `DELIVERIES` at the time of the decision are dropped; later ones are sent.
    Drop {
        /// The last sequence in `DELIVERIES` at the decision, with its time.
        through: StreamPlace,
    },
}

/// The outcome of the hold for one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldDelivery {
    /// The delivery waits for the operator.
    Waits,
    /// The delivery is sent.
    Leaves,
    /// The delivery is dropped, because it may have been sent before.
    Dropped,
}

impl RestoreHold {
    /// Returns whether a delivery of a turn made at `made_at` may have been sent before the restore.
    #[must_use]
    pub fn concerns(&self, made_at: UnixMillis) -> bool {
        made_at <= self.until
    }

    /// Returns the outcome for the delivery at `place` in `DELIVERIES`, whose turn was made at `made_at`.
    #[must_use]
    pub fn decide_delivery(&self, made_at: UnixMillis, place: StreamPlace) -> HeldDelivery {
        if !self.concerns(made_at) {
            return HeldDelivery::Leaves;
        }
        match self.decision {
            HoldDecision::Waiting => HeldDelivery::Waits,
            HoldDecision::Drop { through } if place.is_up_to(&through) => HeldDelivery::Dropped,
            HoldDecision::Send | HoldDecision::Drop { .. } => HeldDelivery::Leaves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(sequence: u64, stored_at_ns: i64) -> StreamPlace {
        StreamPlace { sequence, stored_at_ns }
    }

    fn check(decision: HoldDecision, made_at: i64, place: StreamPlace, expected: HeldDelivery) {
        let hold = RestoreHold {
            backup: "any".to_owned(),
            until: UnixMillis(100),
            at: Some(UnixMillis(200)),
            decision,
        };

        assert_eq!(
            hold.decide_delivery(UnixMillis(made_at), place),
            expected,
            "{decision:?} {made_at} {place}"
        );
    }

    #[test]
    fn what_is_as_old_as_the_backup_waits_for_the_operator() {
        let drop = HoldDecision::Drop { through: at(7, 70) };
        check(HoldDecision::Waiting, 100, at(1, 10), HeldDelivery::Waits);
        check(HoldDecision::Waiting, 101, at(1, 10), HeldDelivery::Leaves);
        check(HoldDecision::Send, 100, at(1, 10), HeldDelivery::Leaves);
        check(drop, 100, at(7, 70), HeldDelivery::Dropped);
        check(drop, 100, at(8, 80), HeldDelivery::Leaves);
        check(drop, 101, at(7, 70), HeldDelivery::Leaves);
    }

    #[test]
    fn what_came_after_the_queue_was_made_anew_was_not_there_when_it_was_decided() {
        let drop = HoldDecision::Drop { through: at(7, 70) };
        check(drop, 100, at(1, 71), HeldDelivery::Leaves);
        check(drop, 100, at(7, 90), HeldDelivery::Leaves);
    }
}
