//! Replies that are committed and not known to be published. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shared::model::reply::Reply;
use ulid::Ulid;

/// Replies that the ledger holds and does not note as published.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReplyOutbox {
    /// The replies, oldest first.
    pub unpublished: Vec<Reply>,
    /// Id of the dispatch that each reply answers (of several the last), by turn.
    pub answers: BTreeMap<Ulid, Ulid>,
}

impl ReplyOutbox {
    /// Adds `reply`, which answers `dispatches`.
    pub(super) fn add(&mut self, reply: &Reply, dispatches: &[Ulid]) {
        self.answers.extend(dispatches.last().map(|last| (reply.turn, *last)));
        self.unpublished.push(reply.clone());
    }

    /// Removes the reply of `turn`, which is published.
    pub(super) fn remove(&mut self, turn: Ulid) {
        self.unpublished.retain(|reply| reply.turn != turn);
        self.answers.remove(&turn);
    }
}
