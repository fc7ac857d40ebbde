//! Intents of a session's finished turns that are not settled or not yet reported. *Pure.*

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use shared::model::intent::service::ProposeIntent;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::notes::push_bounded;

/// Maximum number of owed intents that are remembered at once.
pub const MAX_OWED_INTENTS: usize = 16;

/// An intent that the scheduler has not answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwedIntent {
    /// The proposal for the scheduler.
    pub proposal: ProposeIntent,
    /// Time at which the intent's turn ended.
    pub since: UnixMillis,
}

/// Intents that the scheduler has not answered, and refusals that the next turn must read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionIntents {
    /// Intents that the scheduler has not answered, oldest first; at most [`MAX_OWED_INTENTS`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub owed: VecDeque<OwedIntent>,
    /// Reasons why intents of the newest turn were refused, for the next turn's context; at most
    /// [`super::MAX_NOTES`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub refusals: VecDeque<String>,
}

impl SessionIntents {
    /// Returns whether no intent is owed and no refusal is to be reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Remembers `note` for the next turn; it says why an intent was refused.
    pub(super) fn add_refusal(&mut self, note: &str) {
        push_bounded(&mut self.refusals, note);
    }

    /// Remembers `proposal` as owed since `since`; beyond [`MAX_OWED_INTENTS`] it is forgotten.
    pub(super) fn add_owed(&mut self, proposal: &ProposeIntent, since: UnixMillis) {
        if self.owed.len() < MAX_OWED_INTENTS {
            let proposal = proposal.clone();
            self.owed.push_back(OwedIntent { proposal, since });
        }
    }

    /// Forgets the owed intent `id`; the next turn reads `note`, if there is one.
    pub(super) fn settle(&mut self, id: Ulid, note: Option<&str>) {
        if let Some(note) = note {
            self.add_refusal(note);
        }

        self.owed.retain(|owed| owed.proposal.id != Some(id));
    }

    /// Takes the lines for the context of a turn that begins.
    pub(super) fn take_refusals(&mut self) -> Vec<String> {
        std::mem::take(&mut self.refusals).into()
    }
}
