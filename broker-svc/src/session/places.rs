//! Sequences of the running turn's dispatches: after a restore of the stream, other messages may have them. *Pure.*

use super::{InboxItem, SessionQueue};

impl SessionQueue {
    /// Returns whether `arrival` was not handed in before, and remembers it.
    pub(super) fn is_new(&mut self, arrival: &InboxItem) -> bool {
        let sequence = arrival.sequence();
        if self.seen.insert(sequence) {
            return true;
        }

        let id = match arrival {
            InboxItem::Dispatch(pending) => Some(pending.dispatch.id),
            InboxItem::Order(_) | InboxItem::Decision(_) => None,
        };
        let is_another = self.begun_with.get(&sequence).is_some_and(|known| Some(*known) != id);
        if is_another {
            self.begun_with.remove(&sequence);
            self.release_place(sequence);
        }
        is_another
    }

    /// Notes that none of the running turn's dispatches is at `sequence` any more: the message that is there now is
    /// consumed on its own.
    fn release_place(&mut self, sequence: u64) {
        self.steered.remove(&sequence);
        if let Some(busy) = &mut self.running {
            busy.own.retain(|(own, _)| *own != sequence);
        }
    }

    /// Returns which of `sequences`, where the running turn's dispatches were, are still theirs.
    pub fn still_own(&self, sequences: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let is_waiting = |sequence: &u64| {
            let waiting = self.waiting.iter().map(|waiting| waiting.pending.sequence);
            let steering = self.steering.iter().map(|steering| steering.pending.sequence);
            waiting.chain(steering).any(|taken| taken == *sequence)
        };
        sequences.into_iter().filter(|sequence| !is_waiting(sequence)).collect()
    }
}
