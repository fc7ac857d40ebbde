//! Part of a day's budget that one replica holds. *Pure.*
//!
//! Money is reserved before a call and settled after it. A replica reserves from a slice that it drew from the common
//! budget, so calls of one replica do not wait for each other's writes. The drawn amount is held in the common record
//! and counts as spent for all other replicas. A replica that dies keeps its slice until the day ends: the budget may
//! be used up too early, but is not exceeded.

use shared::model::hook::HookSpend;

/// Number of slices into which a budget is divided.
const SLICES: u64 = 64;

/// Total usage of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SpentTotal {
    /// Number of calls that reached the model.
    pub calls: u64,
    /// Number of tokens sent.
    pub tokens_in: u64,
    /// Number of tokens received.
    pub tokens_out: u64,
    /// Price of the calls, in millionths of a US dollar.
    pub micro_usd: u64,
}

/// Slice of a budget; all amounts are in millionths of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BudgetShare {
    /// Amount that this replica holds of the common budget.
    slice: u64,
    /// Highest total price of the calls under way.
    reserved: u64,
    /// Usage of ended calls that the common record does not have yet.
    unwritten: SpentTotal,
}

/// The common record to write, and the changes to the purse once it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpendDraft {
    /// Record to be written.
    pub after: HookSpend,
    written: SpentTotal,
    returned: u64,
    granted: u64,
}

/// Error for a budget without room for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverBudget {
    /// Amount that is already spent or held.
    pub used: u64,
}

impl BudgetShare {
    /// Reserves `cost` from the slice. Returns whether the slice has room for it; a call that costs nothing needs none.
    pub(super) fn reserve_cost(&mut self, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }

        let used = self.reserved.saturating_add(self.unwritten.micro_usd);
        let fits = used.saturating_add(cost) <= self.slice;
        if fits {
            self.reserved += cost;
        }
        fits
    }

    /// Ends a call for which `reserved` was reserved, and which used `taken`.
    pub(super) fn settle_cost(&mut self, reserved: u64, taken: SpentTotal) {
        self.reserved = self.reserved.saturating_sub(reserved);
        self.unwritten = self.unwritten.plus(taken);
    }

    /// Returns whether no call is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.reserved == 0
    }

    /// Returns whether there is nothing to write to the common record.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Drafts the common record from which a call of `cost` can be reserved.
    ///
    /// # Errors
    /// Returns [`OverBudget`] if `limit` has no room for the call.
    pub(super) fn draft_slice(&self, before: HookSpend, cost: u64, limit: u64) -> Result<SpendDraft, OverBudget> {
        let mut draft = self.write(before, self.unwritten.micro_usd.min(self.slice));
        let kept = self.slice - draft.returned;
        let needed = self.reserved.saturating_add(cost).saturating_sub(kept);
        let used = draft.after.micro_usd.saturating_add(draft.after.held_micro_usd);
        let left = limit.saturating_sub(used);

        if needed > left {
            return Err(OverBudget { used });
        }

        draft.granted = needed.max(limit / SLICES).min(left);
        draft.after.held_micro_usd += draft.granted;

        Ok(draft)
    }

    /// Drafts the common record with all usage and without the amount that no call needs.
    pub(super) fn give_back(&self, before: HookSpend) -> SpendDraft {
        self.write(before, self.slice.saturating_sub(self.reserved))
    }

    fn write(&self, before: HookSpend, returned: u64) -> SpendDraft {
        let written = self.unwritten;
        let after = HookSpend {
            calls: before.calls + written.calls,
            tokens_in: before.tokens_in + written.tokens_in,
            tokens_out: before.tokens_out + written.tokens_out,
            micro_usd: before.micro_usd.saturating_add(written.micro_usd),
            // A record that was deleted holds nothing.
            held_micro_usd: before.held_micro_usd.saturating_sub(returned),
        };

        SpendDraft {
            after,
            written,
            returned,
            granted: 0,
        }
    }

    /// Applies `draft`, now that it is written.
    pub(super) fn adopt_draft(&mut self, draft: &SpendDraft) {
        self.slice = self.slice.saturating_sub(draft.returned) + draft.granted;
        self.unwritten = self.unwritten.minus(draft.written);
    }
}

impl SpentTotal {
    fn plus(self, more: Self) -> Self {
        Self {
            calls: self.calls + more.calls,
            tokens_in: self.tokens_in + more.tokens_in,
            tokens_out: self.tokens_out + more.tokens_out,
            micro_usd: self.micro_usd.saturating_add(more.micro_usd),
        }
    }

    fn minus(self, less: Self) -> Self {
        Self {
            calls: self.calls - less.calls,
            tokens_in: self.tokens_in - less.tokens_in,
            tokens_out: self.tokens_out - less.tokens_out,
            micro_usd: self.micro_usd - less.micro_usd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reserves, drawing from `record` if necessary. Returns whether there was room.
    fn reserve(purse: &mut BudgetShare, record: &mut HookSpend, cost: u64, limit: u64) -> bool {
        if purse.reserve_cost(cost) {
            return true;
        }

        let Ok(draft) = purse.draft_slice(*record, cost, limit) else {
            return false;
        };
        *record = draft.after;
        purse.adopt_draft(&draft);

        assert!(purse.reserve_cost(cost), "it was drawn for this");
        true
    }

    fn give_back(purse: &mut BudgetShare, record: &mut HookSpend) {
        let draft = purse.give_back(*record);
        *record = draft.after;
        purse.adopt_draft(&draft);
    }

    fn taken(micro_usd: u64) -> SpentTotal {
        SpentTotal {
            calls: 1,
            tokens_in: 2,
            tokens_out: 3,
            micro_usd,
        }
    }

    #[test]
    fn as_many_calls_begin_as_the_budget_has_room_for() {
        let (mut purse, mut record) = (BudgetShare::default(), HookSpend::default());
        let begun = (0..200)
            .filter(|_| reserve(&mut purse, &mut record, 100, 1_000))
            .count();

        assert_eq!(begun, 10);

        for _ in 0..begun {
            purse.settle_cost(100, taken(60));
        }

        assert!(reserve(&mut purse, &mut record, 100, 1_000), "they were cheaper");

        purse.settle_cost(100, taken(60));
        give_back(&mut purse, &mut record);
        assert!(purse.is_empty());
        assert_eq!((record.calls, record.micro_usd, record.held_micro_usd), (11, 660, 0));
    }

    #[test]
    fn replicas_share_a_budget_and_a_dead_one_keeps_its_slice() {
        let mut record = HookSpend::default();
        let mut purses = [BudgetShare::default(); 3];

        let mut begun = 0;
        for round in 0..300 {
            begun += usize::from(reserve(&mut purses[round % 3], &mut record, 100, 2_000));
        }

        assert_eq!(begun, 20, "whoever asks");

        for _ in 0..6 {
            purses[0].settle_cost(100, taken(100));
            purses[1].settle_cost(100, taken(100));
        }

        give_back(&mut purses[0], &mut record);
        give_back(&mut purses[1], &mut record);
        let mut late = BudgetShare::default();

        assert!(
            !reserve(&mut late, &mut record, 100, 2_000),
            "what the third held is gone for today"
        );
        assert!(record.micro_usd + record.held_micro_usd <= 2_000);
    }

    #[test]
    fn calls_dearer_than_reserved_are_paid_out_of_what_is_left() {
        let (mut purse, mut record) = (BudgetShare::default(), HookSpend::default());
        for _ in 0..5 {
            assert!(reserve(&mut purse, &mut record, 10, 1_000));
        }

        for _ in 0..5 {
            purse.settle_cost(10, taken(300));
        }

        assert!(
            !reserve(&mut purse, &mut record, 10, 1_000),
            "exceeded by the calls under way, not by more"
        );

        give_back(&mut purse, &mut record);
        assert_eq!(
            (record.micro_usd, record.held_micro_usd, purse.is_empty()),
            (1_500, 0, true)
        );
    }

    #[test]
    fn what_happens_while_the_record_is_written_is_not_forgotten() {
        let mut purse = BudgetShare::default();
        let first = purse.draft_slice(HookSpend::default(), 100, 6_400).expect("room");
        purse.adopt_draft(&first);

        assert!(purse.reserve_cost(50) && purse.reserve_cost(50));

        purse.settle_cost(50, taken(40));
        let draft = purse.draft_slice(first.after, 100, 6_400).expect("room");
        purse.settle_cost(50, taken(45));
        purse.adopt_draft(&draft);

        assert_eq!((purse.unwritten.calls, purse.unwritten.micro_usd), (1, 45));
        assert!(purse.reserve_cost(100), "as it was drawn for");

        let end = purse.give_back(draft.after);
        purse.adopt_draft(&end);
        assert_eq!(end.after.micro_usd, 85);
        assert_eq!(end.after.held_micro_usd, purse.slice);
    }

    #[test]
    fn calls_that_cost_nothing_hold_nothing_and_are_never_refused() {
        let (mut purse, mut record) = (BudgetShare::default(), HookSpend::default());
        assert!(!reserve(&mut purse, &mut record, 1, 0), "nothing is left");
        assert!(reserve(&mut purse, &mut record, 0, 0), "nothing is needed");
        assert!(reserve(&mut purse, &mut record, 0, 1_000));
        assert_eq!(
            (purse.slice, record.held_micro_usd),
            (0, 0),
            "a replica that dies loses nothing"
        );

        purse.settle_cost(0, taken(0));
        give_back(&mut purse, &mut record);
        assert_eq!((record.calls, record.micro_usd, record.held_micro_usd), (1, 0, 0));

        // Calls dearer than reserved have used more than the budget.
        record.micro_usd = 2_000;
        assert!(!reserve(&mut purse, &mut record, 1, 1_000));
        assert!(reserve(&mut purse, &mut record, 0, 1_000));
    }
}
