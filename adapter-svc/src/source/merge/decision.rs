//! Which messages an event has, as it is stored before the event is published. *Pure.*

use serde::{Deserialize, Serialize};

use super::BURST;

/// The messages of one event, as they were decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MergeDecision {
    /// Place whose order is kept: a chat or a channel.
    pub place: String,
    /// The platform's id of the album, or the name of a burst.
    pub name: String,
    /// Numbers of its messages, as far as they came in time, ascending.
    pub messages: Vec<i64>,
    /// Whether its event is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stored: bool,
}

/// The decisions of before, as a watermark has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MergeMemory {
    /// Highest number of the texts that were decided, on a platform whose numbers ascend with time at all places: those up to
    /// it may be stored alone, so that nothing is merged with them. `None` = the platform has no such numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// Decisions, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decided: Vec<MergeDecision>,
}

impl MergeMemory {
    /// Returns the same memory, of a platform whose numbers ascend with time at all places, for a run that starts at the number
    /// `start`. Texts up to it are taken for stored: they may be, if texts were not merged until then, or if the memory is that
    /// of an older watermark.
    #[must_use]
    pub fn with_ascending_numbers(self, start: i64) -> Self {
        Self {
            until: Some(self.until.map_or(start, |until| until.max(start))),
            ..self
        }
    }

    /// Returns whether nothing was decided.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.decided.is_empty() && self.until.is_none()
    }
}

impl MergeDecision {
    /// Returns whether it is about an album, also one of a single message: another of its messages may come later.
    #[must_use]
    pub fn is_album(&self) -> bool {
        !self.name.starts_with(BURST)
    }

    /// Returns whether `other` is about the same messages.
    #[must_use]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.place == other.place && self.messages == other.messages
    }
}

/// Adds `decision` to `decided`, in place of those that were made about its messages before.
pub fn note_decision(decided: &mut Vec<MergeDecision>, decision: MergeDecision) {
    let is_about = |one: &MergeDecision| one.messages.iter().any(|number| decision.messages.contains(number));
    decided.retain(|one| one.place != decision.place || !is_about(one));
    decided.push(decision);
}
