//! How far the copies of other replicas have come, and the evaluations that wait for that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use shared::clock::pause;

use super::{AGAIN, AskCopyError, HEDGE, PeerCopies};
use crate::read_model::peer_api::{ReachedQuestion, ReachedReply};

/// Interval at which a copy is asked although no evaluation waits, to know whether one answers.
pub(super) const PULSE: Duration = Duration::from_secs(2);

/// Time without any answer after which no copy counts as there.
const LOST: Duration = Duration::from_secs(3);

/// Time for which a copy counts as near the streams' ends after it has said so: it is asked each [`PULSE`].
const NEAR: Duration = Duration::from_secs(6);

impl PeerCopies {
    /// Returns whether a copy has answered lately that is near the streams' ends, and not being built.
    pub(crate) fn are_near(&self) -> bool {
        let now = self.0.clock.monotonic();
        let near_at = self.state().near_at;
        self.answer() && near_at.is_some_and(|at| now.saturating_duration_since(at) < NEAR)
    }

    fn note_near(&self) {
        let now = self.0.clock.monotonic();
        self.state().near_at = Some(now);
    }

    /// Waits until a copy answers.
    pub(super) async fn wait_answering(&self) {
        // The sender lives as long as this.
        let _ = self.0.answers.subscribe().wait_for(|answers| *answers).await;
    }

    /// Waits until a copy has reached `sequence`, and one answers.
    pub(crate) async fn wait_reached(&self, sequence: u64) {
        let mut reached = self.0.reached.subscribe();
        if *reached.borrow_and_update() >= sequence && self.answer() {
            return;
        }

        let _waiting = Waiting::new(&self.0.waiting);
        self.0.wanted.send_if_modified(|wanted| {
            let is_higher = *wanted < sequence;
            *wanted = (*wanted).max(sequence);
            is_higher
        });
        loop {
            // The sender lives as long as this.
            let _ = reached.wait_for(|reached| *reached >= sequence).await;
            // The copy that had come so far may be gone: a query would ask in vain.
            self.wait_answering().await;
            if *reached.borrow_and_update() >= sequence {
                return;
            }
        }
    }

    /// Asks how far a copy has come, and returns its sequence of `EVENTS`. A copy that is being built, or does not get beyond
    /// `beyond`, is asked last for some time, and the next one is asked: a copy that lags must not hold up an evaluation for
    /// which another one is far enough. If there is no other, the furthest counts.
    ///
    /// # Errors
    /// Returns [`AskCopyError`] if none answers.
    async fn ask_reached(&self, beyond: u64) -> Result<u64, AskCopyError> {
        let furthest: Mutex<Option<u64>> = Mutex::new(None);
        let accept = |bytes: Bytes| {
            let reply: ReachedReply = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
            let position = reply.position;
            let mut furthest = furthest.lock().unwrap_or_else(PoisonError::into_inner);
            *furthest = (*furthest).max(Some(position));

            if reply.building {
                return Err(format!("the copy is being built, and at event {position}"));
            }
            self.note_near();
            if beyond > 0 && position <= beyond {
                return Err(format!("the copy is at event {position}, not beyond {beyond}"));
            }
            Ok(position)
        };

        let question = ReachedQuestion { beyond };
        let asked = self.ask_until("reached", &question, 4 * HEDGE, accept).await;
        let Some(position) = furthest.into_inner().unwrap_or_else(PoisonError::into_inner) else {
            return asked;
        };

        // A copy that is behind is there all the same.
        self.note_answering();
        Ok(asked.unwrap_or(position))
    }

    /// Asks how far the copies have come while someone waits for them, and now and then whether one answers; never
    /// returns. `is_needed`: whether this replica has no copy that could answer.
    pub(crate) async fn follow(&self, is_needed: impl Fn() -> bool) {
        let mut wanted = self.0.wanted.subscribe();
        let mut holders = self.0.holders.clone();
        let mut answered_at: Option<Instant> = None;
        loop {
            let known = *self.0.reached.borrow();
            // Of a stream that was put back, a sequence of the former one may never come. A waiter is counted before it says
            // what it wants, so that it is seen here, or says so afterwards.
            self.0
                .wanted
                .send_if_modified(|wanted| self.0.waiting.load(Ordering::Acquire) == 0 && std::mem::take(wanted) > 0);
            let goal = *wanted.borrow_and_update();
            if goal > known || is_needed() {
                // Without a goal the answer comes at once, and only tells that there is one.
                let beyond = if goal > known { known } else { 0 };
                let asked = self.ask_reached(beyond).await;
                let now = self.0.clock.monotonic();
                let (reached, gets_on) = match asked {
                    Ok(position) => {
                        answered_at = Some(now);
                        self.note_reached(position);
                        (position, position > known)
                    }
                    Err(error) => {
                        let is_lost = answered_at.is_none_or(|at| now.saturating_duration_since(at) >= LOST);
                        if is_lost && self.0.answers.send_replace(false) {
                            tracing::warn!(%error, "no copy of the read model answers");
                        }
                        (known, false)
                    }
                };

                if goal > reached {
                    // Copies that get on are asked again at once, as they answer once they have.
                    if !gets_on {
                        pause(AGAIN).await;
                    }
                    continue;
                }
            }

            let rest = if self.are_near() { PULSE } else { 4 * AGAIN };
            tokio::select! {
                () = pause(rest) => {}
                changed = wanted.changed() => if changed.is_err() { return },
                changed = holders.changed() => if changed.is_err() { std::future::pending::<()>().await },
            }
        }
    }

    /// Notes that a copy has come to `position`, also if that is lower than before: a stream that was put back has lower
    /// sequences, and the copies know it.
    fn note_reached(&self, position: u64) {
        self.0.reached.send_if_modified(|reached| {
            let differs = *reached != position;
            *reached = position;
            differs
        });
    }
}

/// Counts a waiter while it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Release);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
