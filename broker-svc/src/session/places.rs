//! Where the dispatches that are not done are in the stream, and copies of them. *Pure.*
//!
//! After a restore of the stream, a dispatch that it has lost is made again at another sequence, and another message may
//! have the former one. A copy of a dispatch that is not done is consumed only after that dispatch: if the first message is
//! lost, the copy alone keeps the session from looking as if it had nothing to do.

use shared::model::ledger::{DispatchRef, DropReason};
use ulid::Ulid;

use super::{InboxItem, OwnDispatch, PendingDispatch, SessionEffect, SessionQueue, drop_effect};

impl OwnDispatch {
    /// Creates the entry of a dispatch that the ledger names and that is not read yet.
    pub(super) const fn from_ledger(known: &DispatchRef) -> Self {
        Self {
            id: known.id,
            sequence: known.sequence,
            is_read: false,
        }
    }

    /// Creates the entry of a dispatch that was read.
    pub(super) fn from_pending(pending: &PendingDispatch) -> Self {
        Self {
            id: pending.dispatch.id,
            sequence: pending.sequence,
            is_read: true,
        }
    }
}

impl SessionQueue {
    /// Returns whether `arrival` was not handed in before, and remembers it.
    pub(super) fn is_new(&mut self, arrival: &InboxItem) -> bool {
        self.seen.insert(arrival.sequence())
    }

    /// Returns whether the dispatch `id` was handed in, or is one of the running turn's, and is not done.
    #[must_use]
    pub fn is_open(&self, id: Ulid) -> bool {
        let running = self.running.iter().flat_map(|busy| busy.own.iter().map(|own| own.id));
        let waiting = self.waiting.iter().map(|waiting| waiting.pending.dispatch.id);
        let steering = self.steering.iter().map(|steering| steering.pending.dispatch.id);
        running.chain(waiting).chain(steering).any(|open| open == id)
    }

    /// Takes `pending`, whose id is known. The first message of one of the running turn's dispatches is noted; a copy of a
    /// dispatch that is not done is kept until that dispatch is done, and any other copy is dropped.
    pub(super) fn take_known(&mut self, pending: PendingDispatch, effects: &mut Vec<SessionEffect>) {
        if self.note_own(&pending) {
            return;
        }

        let former = if self.is_open(pending.dispatch.id) {
            self.copies.insert(pending.dispatch.id, pending)
        } else {
            Some(pending)
        };
        effects.extend(former.map(|former| drop_effect(former, DropReason::Duplicate)));
    }

    /// Drops the copies of the dispatches that are done.
    pub(super) fn drop_copies(&mut self, effects: &mut Vec<SessionEffect>) {
        let done: Vec<Ulid> = self.copies.keys().copied().filter(|id| !self.is_open(*id)).collect();
        for id in done {
            let copy = self.copies.remove(&id);
            effects.extend(copy.map(|copy| drop_effect(copy, DropReason::Duplicate)));
        }
    }

    /// Notes that the dispatches `found` of the running turn were read from the stream.
    pub fn note_found(&mut self, found: &[PendingDispatch]) {
        for pending in found {
            if self.note_own(pending) {
                self.seen.insert(pending.sequence);
            }
        }
    }

    /// Notes where `pending` is if it is a dispatch of the running turn that was not read before. Returns whether it is.
    fn note_own(&mut self, pending: &PendingDispatch) -> bool {
        let own = self.running.iter_mut().flat_map(|busy| &mut busy.own);
        let unread = own
            .into_iter()
            .find(|own| own.id == pending.dispatch.id && !own.is_read);
        match unread {
            Some(own) => {
                *own = OwnDispatch::from_pending(pending);
                true
            }
            None => false,
        }
    }

    /// Returns the sequences of the running turn's dispatches that were read: they are consumed with the turn. Another
    /// message may have the sequence of one that was not.
    #[must_use]
    pub fn own_sequences(&self) -> Vec<u64> {
        let own = self.running.iter().flat_map(|busy| &busy.own);
        own.filter(|own| own.is_read).map(|own| own.sequence).collect()
    }

    /// Forgets the dispatches `ids`, whose turn could not be run because they are lost: one that comes later is new.
    pub fn forget_ids(&mut self, ids: &[Ulid]) {
        self.ids.retain(|id| !ids.contains(id));
    }
}
