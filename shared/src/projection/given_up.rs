//! Dead letters and held messages that traces need: a chain that ended in a dead letter is not in progress, and one
//! that waits for an operator is. *Pure.*

use std::collections::BTreeMap;

use crate::wire::dead_letter::DeadLetter;
use crate::wire::headers::MSG_ID;
use crate::wire::held::{HELD_LETTER, HeldUntil};
use crate::wire::topology::streams;

/// Maximum number of dead letters of each kind that are remembered; the oldest are dropped.
pub const MAX_REMEMBERED: usize = 2_000;

/// Dead letters that end a link of a causal chain without another record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Reasons of events that were not evaluated, by sequence in `EVENTS`.
    events: BTreeMap<u64, String>,
    /// Reasons of replies that were not delivered, by turn.
    replies: BTreeMap<String, String>,
    /// Decisions of operators on held messages, by key in KV `held`; none = not asked for yet.
    held: Option<BTreeMap<String, HeldUntil>>,
}

impl GivenUp {
    /// Adds a dead letter. A held message is not given up.
    pub fn take(&mut self, letter: &DeadLetter) {
        if letter.service == HELD_LETTER {
            return;
        }

        let why = format!("{}: {}", letter.reason, letter.detail);
        if letter.stream == streams::EVENTS {
            self.events.insert(letter.sequence, why);
            if self.events.len() > MAX_REMEMBERED {
                self.events.pop_first();
            }
            return;
        }

        // The message of a delivery has its turn's id, even if the server rejected that message.
        let is_reply = letter.stream == streams::DELIVERIES || letter.redrive_subject.starts_with("nexus.delivery.");
        let id = letter
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(MSG_ID));
        if let Some((_, turn)) = id.filter(|_| is_reply) {
            self.replies.insert(turn.clone(), why);
            if self.replies.len() > MAX_REMEMBERED {
                self.replies.pop_first();
            }
        }
    }

    /// Adds the values in KV `held` of the keys that a trace asked for.
    pub fn take_held(&mut self, held: BTreeMap<String, HeldUntil>) {
        self.held = Some(held);
    }

    /// Returns whether KV `held` was read.
    #[must_use]
    pub const fn is_held_known(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the value that KV `held` has under `key`; `None` if the bucket was not read.
    #[must_use]
    pub fn held(&self, key: &str) -> Option<Option<HeldUntil>> {
        let held = self.held.as_ref()?;
        Some(held.get(key).copied())
    }

    /// Returns the reason why the event at `sequence` was given up, if it was.
    #[must_use]
    pub fn event_reason(&self, sequence: u64) -> Option<&str> {
        self.events.get(&sequence).map(String::as_str)
    }

    /// Returns the reason why the reply of `turn` was given up, if it was.
    #[must_use]
    pub fn reply_reason(&self, turn: &str) -> Option<&str> {
        self.replies.get(turn).map(String::as_str)
    }
}
