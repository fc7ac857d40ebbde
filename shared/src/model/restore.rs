//! What a restore has left to be decided: deliveries that may have been made before. *Pure.* Source:
//! `docs/design/trust.md` §2.4.

use serde::{Deserialize, Serialize};

use super::position::Place;
use super::time::UnixMillis;

/// Key of the one [`RestoreHold`], in the bucket `restore`.
pub const HOLD_KEY: &str = "hold";

/// Deliveries of turns that are as old as a restored backup wait until the operator has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreHold {
    /// The backup that was restored.
    pub backup: String,
    /// When the backup ended: what is younger was not done before.
    pub until: UnixMillis,
    /// When it was restored: what is older comes from the backup, and no queue has lost it. None where that is not known, and
    /// nothing may be taken for older.
    pub at: Option<UnixMillis>,
    /// What the operator has decided.
    pub decision: HoldDecision,
}

/// What the operator has decided of the deliveries that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum HoldDecision {
    /// Nothing yet: they wait.
    Waiting,
    /// They leave.
    Send,
    /// Those that were in `DELIVERIES` when this was decided do not leave; what came later does.
    Drop {
        /// The last sequence in `DELIVERIES` at that moment, and the moment.
        through: Place,
    },
}

/// What becomes of one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldDelivery {
    /// It waits for the operator.
    Waits,
    /// It leaves.
    Leaves,
    /// It does not leave: it may have before.
    Dropped,
}

impl RestoreHold {
    /// Whether a delivery that was made at `made_at` may have been made before the restore.
    #[must_use]
    pub fn concerns(&self, made_at: UnixMillis) -> bool {
        made_at <= self.until
    }

    /// What becomes of the delivery at `place` in `DELIVERIES`, whose turn was made at `made_at`.
    #[must_use]
    pub fn decide(&self, made_at: UnixMillis, place: Place) -> HeldDelivery {
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

    const fn at(sequence: u64, stored_at_ns: i64) -> Place {
        Place { sequence, stored_at_ns }
    }

    fn check(decision: HoldDecision, made_at: i64, place: Place, expected: HeldDelivery) {
        let hold = RestoreHold {
            backup: "any".to_owned(),
            until: UnixMillis(100),
            at: Some(UnixMillis(200)),
            decision,
        };

        assert_eq!(
            hold.decide(UnixMillis(made_at), place),
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
