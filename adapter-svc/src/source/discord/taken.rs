//! What dispatches and pages lead to, until it is stored.

use serde_json::Value;
use shared::model::event::Event;

use super::drive::HeldDispatch;
use crate::source::merge::MergeDecision;
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
    /// Decisions about the messages of merged events.
    pub decided: Vec<MergeDecision>,
    /// Whether the decisions are stored.
    pub is_decided: bool,
    /// Dispatches of the events, which are held until those are stored.
    pub held: Vec<HeldDispatch>,
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

/// A dispatch whose event waits for those that may belong to it.
#[derive(Debug)]
pub(super) struct WaitingDispatch {
    /// Id of its session.
    pub session: String,
    /// Number in the session.
    pub seq: u64,
    /// The message that it is, if it is a message that was written.
    pub message: Option<TakenMessage>,
    /// The dispatch itself; of a dispatch with several events the last one has it.
    pub held: Option<HeldDispatch>,
}

impl WaitingDispatch {
    /// Returns whether it is the dispatch `seq` of `session`.
    #[must_use]
    pub(super) fn is_of(&self, session: &str, seq: u64) -> bool {
        self.session == session && self.seq == seq
    }
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

    /// Adds the dispatch `payload`, which cannot be read because of `detail`; `reason` is its name.
    pub(super) fn add_letter(&mut self, payload: Value, reason: &'static str, detail: String) {
        self.letters.push(RefusedDispatch {
            payload,
            reason,
            detail,
        });
    }
}
