//! The dispatches of a turn that a former owner began.

use std::time::Duration;

use shared::clock::pause;
use shared::model::ledger::DispatchRef;
use shared::wire::held::{HeldKind, held_key};

use super::Worker;
use super::wait::LOOK_EVERY;
use crate::error::RunSessionError;
use crate::queue::inbox::DispatchSearch;

/// A worker's wait for a lost dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhileWaiting {
    /// It reads the session's messages; an order or a message that cancels the turn ends the wait.
    ReadInbox,
    /// It appends nothing, so that the ledger still shows its gap. A dispatch that hook-svc holds is not waited for.
    AppendNothing,
}

impl Worker<'_> {
    /// Searches for the dispatches `wanted` of the running turn. Waits up to `broker.lost_dispatch_ms` for those that
    /// `DISPATCHES` has lost; if the time passes or the turn is canceled, some are missing.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the stream cannot be read, or the session has another owner.
    pub(super) async fn find_dispatches(
        &mut self,
        wanted: Vec<DispatchRef>,
        meanwhile: WhileWaiting,
    ) -> Result<DispatchSearch, RunSessionError> {
        let mut search = DispatchSearch::new(wanted);
        let begun = self.broker.clock.monotonic();
        let patience = Duration::from_millis(self.broker.config.lost_dispatch_ms);

        loop {
            search.read_on(&self.broker.bus, &self.claimed.session).await?;
            let waited = self.broker.clock.monotonic().saturating_duration_since(begun);
            let is_over = waited >= patience
                || match meanwhile {
                    WhileWaiting::ReadInbox => self.canceled.is_some(),
                    WhileWaiting::AppendNothing => self.are_held(&search.missing()).await?,
                };
            if search.is_complete() || is_over {
                return Ok(search);
            }

            let missing = search.missing().len();
            tracing::debug!(session = %self.claimed.session, missing, "waiting for lost dispatches to be published again");
            self.claimed.slot.lend();
            pause(LOOK_EVERY).await;
            match meanwhile {
                WhileWaiting::ReadInbox => self.look_up().await?,
                WhileWaiting::AppendNothing => self.still_ours()?,
            }
        }
    }

    /// Returns whether each of `dispatches` is held, or was and is decided.
    pub(super) async fn are_held(&self, dispatches: &[DispatchRef]) -> Result<bool, RunSessionError> {
        for dispatch in dispatches {
            if !self.is_held(dispatch).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether `dispatch` is held, or was and is decided.
    pub(super) async fn is_held(&self, dispatch: &DispatchRef) -> Result<bool, RunSessionError> {
        let key = held_key(HeldKind::Dispatch, dispatch.id);
        Ok(self.broker.bus.held_bucket().find(&key).await?.0.is_some())
    }
}
