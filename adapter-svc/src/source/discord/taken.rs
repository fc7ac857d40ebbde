//! What dispatches and pages lead to, until it is stored.

use serde_json::Value;
use shared::model::event::Event;

use crate::source::port::SourceGap;

/// Events, and what else is stored with them.
#[derive(Debug, Default)]
pub(super) struct TakenBatch {
    /// Events in their order.
    pub events: Vec<Event>,
    /// Gaps.
    pub gaps: Vec<SourceGap>,
    /// Messages of the gateway, whose channels get marks.
    pub messages: Vec<TakenMessage>,
    /// Dispatches that cannot be read.
    pub letters: Vec<RefusedDispatch>,
}

/// A message of the gateway.
#[derive(Debug)]
pub(super) struct TakenMessage {
    /// Channel.
    pub channel: String,
    /// Id.
    pub id: u64,
    /// Position of its event in the batch; `None` = it makes none.
    pub event: Option<usize>,
    /// Whether the channel is a direct one.
    pub is_direct: bool,
}

/// A dispatch that becomes a dead letter.
#[derive(Debug)]
pub(super) struct RefusedDispatch {
    /// The dispatch, as it is kept.
    pub payload: Value,
    /// Name of the reason.
    pub reason: &'static str,
    /// The reason, for people.
    pub detail: String,
}

impl TakenBatch {
    /// Returns whether there is nothing to store.
    #[must_use]
    pub(super) const fn is_empty(&self) -> bool {
        self.events.is_empty() && self.gaps.is_empty() && self.messages.is_empty() && self.letters.is_empty()
    }

    /// Adds the message `id` of `channel` with its events. `is_direct` says that the channel is a direct one.
    pub(super) fn add_message(&mut self, channel: &str, id: u64, is_direct: bool, events: Vec<Event>) {
        self.messages.push(TakenMessage {
            channel: channel.to_owned(),
            id,
            event: (!events.is_empty()).then_some(self.events.len()),
            is_direct,
        });
        self.events.extend(events);
    }

    /// Adds the dispatch `payload`, which cannot be read because of `detail`; `reason` is its name.
    pub(super) fn add_letter(&mut self, payload: Value, reason: &'static str, detail: String) {
        self.letters.push(RefusedDispatch {
            payload,
            reason,
            detail,
        });
    }
}
