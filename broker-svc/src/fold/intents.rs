//! The intents that an agent asked for in its answers, as far as the scheduler has not answered for them. *Pure.*

use shared::model::intent::service::ProposeIntent;
use ulid::Ulid;

use super::{Fold, remember};

/// Owed intents remembered at once.
pub const MAX_OWED_INTENTS: usize = 16;

impl Fold {
    /// Remembers that the next turn is told why an intent was refused.
    pub(super) fn note_refusal(&mut self, note: &str) {
        remember(&mut self.refused, note);
    }

    /// Remembers an intent that the scheduler has not answered for; one too many is forgotten.
    pub(super) fn owe_intent(&mut self, proposal: &ProposeIntent) {
        if self.owed_intents.len() < MAX_OWED_INTENTS {
            self.intents_owed_since.extend(proposal.id.map(|id| (id, self.at)));
            self.owed_intents.push_back(proposal.clone());
        }
    }

    /// Forgets the owed intent `id`.
    pub(super) fn settle_intent(&mut self, id: Ulid) {
        self.owed_intents.retain(|proposal| proposal.id != Some(id));
        self.intents_owed_since.remove(&id);
    }
}
