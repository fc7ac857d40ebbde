//! Waits for a result while checking the claim's deadline, the request to stop and the queue.
//!
//! Data is always read from the end of the last look: soon after a ring of the bell, and each second.

use std::pin::Pin;
use std::time::Duration;

use shared::clock::pause;

use super::Worker;
use crate::error::RunSessionError;

/// Wait between two looks of a running turn if the bell does not ring.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Waits between the looks after a ring, milliseconds, until one of them finds something.
const LOOKS_AFTER_RING: [u64; 6] = [1, 4, 10, 25, 50, 100];
/// Part of the drain time that is kept for handing the session back.
const HAND_BACK_BEFORE: Duration = Duration::from_secs(2);
/// Maximum number of dispatches in memory; more are read once there is room.
const MAX_QUEUED: usize = 1_024;

impl Worker<'_> {
    /// Waits for `work` and looks up meanwhile. Returns `None` if the machine wants something else first: the running
    /// turn to be canceled, a turn that waits for an approval to go on, or a turn to be started.
    pub(super) async fn wait_beside<F: Future>(
        &mut self,
        mut work: Pin<&mut F>,
    ) -> Result<Option<F::Output>, RunSessionError> {
        let mut looks = LOOKS_AFTER_RING.len();
        let suspended = self.is_suspended();
        loop {
            let wait = LOOKS_AFTER_RING
                .get(looks)
                .map_or(LOOK_EVERY, |&ms| Duration::from_millis(ms));
            tokio::select! {
                // Finished work comes first: an interruption now comes too late.
                biased;
                done = &mut work => return Ok(Some(done)),
                () = self.inbox.wait_for_ring() => looks = 0,
                () = pause(wait) => looks = looks.saturating_add(1),
            }

            let before = self.inbox.looked_through();
            self.look_up().await?;

            // The announced message has been found, so there is no need to look in short intervals.
            if self.inbox.looked_through() > before {
                looks = LOOKS_AFTER_RING.len();
            }

            if self.canceled.is_some() || !self.effects.is_empty() || suspended && self.goes_on() {
                return Ok(None);
            }
        }
    }

    /// Fails if the claim's deadline has passed or the process must stop now.
    pub(super) fn still_ours(&self) -> Result<(), RunSessionError> {
        self.owner.check_live()?;
        if self.broker.is_stop_overdue() {
            return Err(RunSessionError::HandBack);
        }
        Ok(())
    }

    /// Checks the deadline, the request to stop and the queue. If the session is being given back, new messages are
    /// left to its next owner.
    pub(super) async fn look_up(&mut self) -> Result<(), RunSessionError> {
        self.still_ours()?;
        if !self.yields && self.machine.queued_count() < MAX_QUEUED {
            let look = self.read_inbox().await?;
            self.take_in(look).await?;
        }
        Ok(())
    }

    /// Listens to the session's subject from now on, and looks at the messages that came before. Without a bell the
    /// look each second finds the same messages, later.
    pub(super) async fn listen(&mut self) -> Result<(), RunSessionError> {
        if self.inbox.listen(&self.broker.bus, &self.claimed.session).await {
            self.look_up().await?;
        }
        Ok(())
    }
}

impl crate::broker::BrokerContext {
    /// Returns whether the request to stop is so old that running turns must be handed back.
    fn is_stop_overdue(&self) -> bool {
        let patience = self.drain.saturating_sub(HAND_BACK_BEFORE);
        self.activity
            .stopping_since()
            .is_some_and(|since| self.clock.monotonic().saturating_duration_since(since) >= patience)
    }
}
