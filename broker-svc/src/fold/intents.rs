//! The intents of a session's finished turns, as far as the session still has to do with them. *Pure.*

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use shared::model::intent::service::ProposeIntent;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::notes::push_bounded;

/// Owed intents remembered at once.
pub const MAX_OWED_INTENTS: usize = 16;

/// An intent that the scheduler has not answered for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwedIntent {
    /// The question to the scheduler.
    pub proposal: ProposeIntent,
    /// When its turn ended.
    pub since: UnixMillis,
}

/// Intents that the scheduler has not answered for, and those of which the next turn is told why they were refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SessionIntents {
    /// Intents that the scheduler has not answered for, oldest first; at most [`MAX_OWED_INTENTS`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub owed: VecDeque<OwedIntent>,
    /// Why intents of the newest turn were refused, for the next turn's context; at most [`super::MAX_NOTES`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub refusals: VecDeque<String>,
}

impl SessionIntents {
    /// Returns whether nothing is owed and nothing is to be told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Remembers that the next turn is told `note`, which says why an intent was refused.
    pub(super) fn add_refusal(&mut self, note: &str) {
        push_bounded(&mut self.refusals, note);
    }

    /// Remembers `proposal` as owed since `since`; one more than [`MAX_OWED_INTENTS`] is forgotten.
    pub(super) fn add_owed(&mut self, proposal: &ProposeIntent, since: UnixMillis) {
        if self.owed.len() < MAX_OWED_INTENTS {
            let proposal = proposal.clone();
            self.owed.push_back(OwedIntent { proposal, since });
        }
    }

    /// Forgets the owed intent `id`; the next turn is told `note`, if there is one.
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
