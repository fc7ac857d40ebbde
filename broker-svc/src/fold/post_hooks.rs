//! The post-turn hooks that finished turns of a session still need. *Pure.*

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shared::model::ledger::FinishedTurn;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::Fold;

/// Finished turns remembered at once; a session starts no turn while it has nearly as many.
pub const MAX_PENDING_POST_HOOKS: usize = 64;

/// A finished turn whose post-turn hooks have not all run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingPostHooks {
    /// The turn, as its hooks are told of it.
    pub finished: FinishedTurn,
    /// Keys of the hooks that have run.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<String>,
    /// How often the next hook has failed.
    pub tries: u32,
    /// The earliest time of its next run; none if it may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_at: Option<UnixMillis>,
}

impl Fold {
    /// Remembers that the hooks of `finished` are to run; the oldest turn is forgotten if there are too many.
    pub(super) fn add_post_hooks(&mut self, finished: &FinishedTurn) {
        if self.post_hooks.len() == MAX_PENDING_POST_HOOKS {
            self.post_hooks.pop_front();
        }

        self.post_hooks.push_back(PendingPostHooks {
            finished: finished.clone(),
            done: BTreeSet::new(),
            tries: 0,
            again_at: None,
        });
    }

    /// Notes that the hooks after tool calls have seen the call that `turn` left unseen.
    pub(super) fn note_call_shown(&mut self, turn: Ulid) {
        if let Some(pending) = self.pending_of(turn) {
            pending.finished.unseen = None;
            pending.tries = 0;
            pending.again_at = None;
        }
    }

    /// Notes that `hook` ran after `turn`.
    pub(super) fn note_post_hook_ran(&mut self, turn: Ulid, hook: &str) {
        if let Some(pending) = self.pending_of(turn) {
            pending.done.insert(hook.to_owned());
            pending.tries = 0;
            pending.again_at = None;
        }
    }

    /// Notes that the next hook after `turn` failed, and runs again at `retry_at`.
    pub(super) fn note_post_hook_failed(&mut self, turn: Ulid, retry_at: UnixMillis) {
        if let Some(pending) = self.pending_of(turn) {
            pending.tries += 1;
            pending.again_at = Some(retry_at);
        }
    }

    /// Forgets `turn`, which needs no hook any more.
    pub(super) fn settle_post_hooks(&mut self, turn: Ulid) {
        self.post_hooks.retain(|pending| pending.finished.turn != turn);
    }

    fn pending_of(&mut self, turn: Ulid) -> Option<&mut PendingPostHooks> {
        self.post_hooks.iter_mut().find(|pending| pending.finished.turn == turn)
    }
}
