//! Whether there is anything to do in a session. *Pure.*

use shared::model::ledger::LedgerCursor;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::SessionState;
use crate::turn::journal::AwaitedApproval;

/// The parts of a fold that decide whether the session is runnable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunState {
    /// Position of the session in `DISPATCHES`.
    pub cursor: LedgerCursor,
    /// Whether a turn was begun and is not over.
    pub in_turn: bool,
    /// The approval that the turn waits for.
    pub awaits: Option<AwaitedApproval>,
    /// Whether a committed reply is not known to be published, or a finished turn's post-turn hooks have not all run.
    pub owes: bool,
}

impl RunState {
    /// Returns the standing of `fold`; `published` are turns whose replies are known to be published although the
    /// ledger does not note it yet.
    #[must_use]
    pub fn from_fold(fold: &SessionState, published: &[Ulid]) -> Self {
        Self {
            cursor: fold.cursor.clone(),
            in_turn: fold.running.is_some(),
            awaits: fold.awaited_approval().cloned(),
            owes: !fold.post_hooks.is_empty()
                || fold
                    .replies
                    .unpublished
                    .iter()
                    .any(|reply| !published.contains(&reply.turn)),
        }
    }
}

/// Returns whether there is anything to do in a session. Taking, releasing and looking all decide by this function
/// (`docs/design/sessions.md` §1.6).
///
/// `pending` is the lowest sequence in `DISPATCHES` that was seen beyond the cursor's floor. A session suspended on
/// an approval is runnable only once the approval lapsed; its decision ends the suspension through the ledger.
#[must_use]
pub fn is_runnable(standing: &RunState, pending: Option<u64>, now: UnixMillis) -> bool {
    if let Some(awaited) = &standing.awaits {
        return now >= awaited.expires_at;
    }
    standing.in_turn || standing.owes || pending.is_some_and(|sequence| !standing.cursor.contains(sequence))
}
