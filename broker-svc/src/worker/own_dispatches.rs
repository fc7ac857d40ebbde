//! The dispatches of a turn that a former owner began.

use std::time::Duration;

use shared::clock::pause;
use shared::model::ledger::DispatchRef;
use ulid::Ulid;

use super::Worker;
use super::wait::LOOK_EVERY;
use crate::error::RunSessionError;
use crate::queue::inbox::{self, DispatchSearch};
use crate::session::PendingDispatch;
use crate::turn::journal::RunningTurn;

/// How long a turn waits for a dispatch that its stream has lost: hook-svc makes it again soon after it has noticed.
const MADE_AGAIN_WITHIN: Duration = Duration::from_secs(30);

impl Worker<'_> {
    /// Returns the dispatches that `running` began with, in its order. Waits up to [`MADE_AGAIN_WITHIN`] for those that
    /// `DISPATCHES` has lost; if the time passes or the turn is canceled, returns those that were found.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the stream cannot be read, or the session has another owner.
    pub(super) async fn own_dispatches(
        &mut self,
        running: &RunningTurn,
    ) -> Result<Vec<PendingDispatch>, RunSessionError> {
        let sequences = running.own_sequences();
        let own = |known: &&DispatchRef| sequences.contains(&known.sequence);
        let ids: Vec<Ulid> = running.dispatches.iter().filter(own).map(|known| known.id).collect();
        let mut search = DispatchSearch::new(ids.clone());
        let begun = self.broker.clock.monotonic();

        loop {
            let (bus, session) = (&self.broker.bus, &self.claimed.session);
            let mut found = inbox::fetch(bus, session, &sequences).await?;
            // If the stream was restored, another message may have that sequence.
            found.retain(|pending| ids.contains(&pending.dispatch.id));
            if found.len() < ids.len() {
                found = search.read_on(bus, session).await?;
            }

            found.sort_by_key(|pending| ids.iter().position(|id| *id == pending.dispatch.id));
            let waited = self.broker.clock.monotonic().saturating_duration_since(begun);
            if found.len() == ids.len() || self.canceled.is_some() || waited >= MADE_AGAIN_WITHIN {
                return Ok(found);
            }

            tracing::debug!(session = %self.claimed.session, turn = %running.turn, "waiting for a lost dispatch to be made again");
            self.claimed.slot.lend();
            pause(LOOK_EVERY).await;
            self.look_up().await?;
        }
    }
}
