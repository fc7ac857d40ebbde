//! The post-turn hooks that finished turns of a session still need. *Pure.*

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use shared::model::ledger::FinishedTurn;
use shared::model::time::UnixMillis;
use ulid::Ulid;

/// Finished turns remembered at once. The worker waits as soon as more than 8 are pending, so the bound is never reached.
pub const MAX_PENDING_POST_HOOKS: usize = 64;

/// A finished turn whose post-turn hooks have not all run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingPostHooks {
    /// The turn, as its hooks see it.
    pub finished: FinishedTurn,
    /// Keys of the hooks that have run.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<String>,
    /// Number of times that the next hook has failed.
    pub tries: u32,
    /// Earliest time of the next hook's next run; none if it may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_at: Option<UnixMillis>,
}

/// Finished turns whose post-turn hooks have not all run, oldest first; at most [`MAX_PENDING_POST_HOOKS`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PostHookQueue(VecDeque<PendingPostHooks>);

impl PostHookQueue {
    /// Returns the turn whose hooks run next.
    #[must_use]
    pub fn first(&self) -> Option<&PendingPostHooks> {
        self.0.front()
    }

    /// Returns the turns, oldest first.
    pub fn turns(&self) -> impl Iterator<Item = Ulid> {
        self.0.iter().map(|pending| pending.finished.turn)
    }

    /// Returns the number of turns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no turn needs hooks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `finished`; the oldest turn is forgotten if there are too many.
    pub(super) fn add(&mut self, finished: &FinishedTurn) {
        if self.0.len() == MAX_PENDING_POST_HOOKS {
            self.0.pop_front();
        }

        self.0.push_back(PendingPostHooks {
            finished: finished.clone(),
            done: BTreeSet::new(),
            tries: 0,
            again_at: None,
        });
    }

    /// Notes that the hooks after tool calls have seen the call that `turn` left unseen.
    pub(super) fn note_call_shown(&mut self, turn: Ulid) {
        if let Some(pending) = self.find(turn) {
            pending.finished.unseen = None;
            pending.tries = 0;
            pending.again_at = None;
        }
    }

    /// Notes that `hook` ran after `turn`.
    pub(super) fn note_ran(&mut self, turn: Ulid, hook: &str) {
        if let Some(pending) = self.find(turn) {
            pending.done.insert(hook.to_owned());
            pending.tries = 0;
            pending.again_at = None;
        }
    }

    /// Notes that the next hook after `turn` failed, and runs again at `retry_at`.
    pub(super) fn note_failed(&mut self, turn: Ulid, retry_at: UnixMillis) {
        if let Some(pending) = self.find(turn) {
            pending.tries += 1;
            pending.again_at = Some(retry_at);
        }
    }

    /// Removes `turn`, which needs no hook any more.
    pub(super) fn settle(&mut self, turn: Ulid) {
        self.0.retain(|pending| pending.finished.turn != turn);
    }

    fn find(&mut self, turn: Ulid) -> Option<&mut PendingPostHooks> {
        self.0.iter_mut().find(|pending| pending.finished.turn == turn)
    }
}
