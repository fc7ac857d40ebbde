//! Claims: pulled for free slots, kept alive while they are worked on, and never acknowledged past their deadline.
//!
//! A claim is requested only if a slot is reserved for it, so that no claim lies here while other brokers could work
//! on it. A claim counts as received at the last time at which certainly none was on its way (`quiet`).

mod quiet;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use shared::bus::dead_letter::MessageVerdict;
use shared::bus::{ConsumeError, IncomingMessage, MessageFetcher, claim};
use shared::clock::pause;
use shared::model::session::SessionRef;
use shared::wire::session_mark::SessionClaim;
use shared::wire::subject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::broker::BrokerContext;
use crate::config::SERVICE;
use crate::error::RunSessionError;
use crate::queue::claim_deadline::ClaimDeadline;
use crate::queue::quarantine;
use crate::queue::quarantine::ClaimVerdict;
use crate::queue::slot::SessionSlot;
use crate::worker::{self, ClaimedSession};

use self::quiet::{LOOK_EVERY, Quiet};

/// Interval at which a held claim shows that its holder lives.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of claims requested at once.
const MAX_BATCH: usize = 64;
/// Maximum age of a claim when its work begins; an older one is left to the ack wait. The first sign of life must be sent
/// before the ack wait ends.
const MAX_AGE: Duration = Duration::from_millis(1_500);

/// Runs claimed sessions until shutdown is requested and the running ones are done or handed back. `tell` is called
/// with whether claims can be requested.
pub async fn serve(broker: &Arc<BrokerContext>, tell: impl Fn(Result<(), &ConsumeError>)) {
    let mut source = Source::new(Arc::clone(broker));
    let mut workers = JoinSet::new();

    let stop = broker.shutdown.clone();
    loop {
        while workers.try_join_next().is_some() {}
        let taken = tokio::select! {
            biased;
            () = stop.requested() => break,
            taken = source.next(&tell) => taken,
        };

        workers.spawn(handle(Arc::clone(broker), taken));
    }

    broker.begin_stop();
    source.hand_back().await;
    while workers.join_next().await.is_some() {}
}

/// A claim, the earliest instant at which it can have been sent to us, and its slot.
struct Taken {
    incoming: IncomingMessage,
    received: Instant,
    slot: OwnedSemaphorePermit,
    /// Places of sessions that have lent their slots.
    places: Arc<Semaphore>,
}

/// Source of claims, which are requested as slots become free.
struct Source {
    broker: Arc<BrokerContext>,
    claims: MessageFetcher,
    slots: Arc<Semaphore>,
    places: Arc<Semaphore>,
    /// Slots reserved for requested claims that have not come yet.
    kept: Option<OwnedSemaphorePermit>,
    quiet: Quiet,
}

impl Source {
    fn new(broker: Arc<BrokerContext>) -> Self {
        Self {
            claims: claim::fetcher(&broker.bus),
            slots: Arc::new(Semaphore::new(broker.config.max_active_turns)),
            places: Arc::new(Semaphore::new(broker.config.max_active_turns)),
            kept: None,
            quiet: Quiet::new(broker.clock.monotonic()),
            broker,
        }
    }

    async fn next(&mut self, tell: &impl Fn(Result<(), &ConsumeError>)) -> Taken {
        loop {
            // Whether the buffer was empty decides when a claim was received: a buffered one may be old.
            let incoming = self.next_incoming().await;

            let slot = self.kept.as_mut().and_then(|kept| kept.split(1));
            let (Some(incoming), Some(slot)) = (incoming, slot) else {
                tell(self.request_claims().await.as_ref().copied());
                continue;
            };

            // The ack timeout counts from the delivery. A claim that waited here may belong to another broker soon.
            let received = self.quiet.since();
            let age = self.broker.clock.monotonic().saturating_duration_since(received);
            if age <= MAX_AGE {
                return Taken {
                    incoming,
                    received,
                    slot,
                    places: Arc::clone(&self.places),
                };
            }

            let age_ms = age.as_millis();
            tracing::debug!(age_ms, "claims waited too long; leaving them to the ack timeout");
            // All buffered claims are at least as old.
            self.claims.cancel_request();
        }
    }

    /// Returns the next claim, or `None` if none comes any more; looks again and again whether one is there.
    async fn next_incoming(&mut self) -> Option<IncomingMessage> {
        loop {
            let now = self.broker.clock.monotonic();
            if let Some(incoming) = self.claims.next().now_or_never() {
                return incoming;
            }
            self.quiet.note_empty(now);

            tokio::select! {
                biased;
                incoming = self.claims.next() => return incoming,
                () = pause(LOOK_EVERY) => {}
            }
        }
    }

    /// Waits for a free slot, then requests as many claims as there are free slots.
    async fn request_claims(&mut self) -> Result<(), ConsumeError> {
        self.kept = None;
        let Ok(mut kept) = Arc::clone(&self.slots).acquire_owned().await else {
            return Ok(());
        };

        let more = u32::try_from(self.slots.available_permits().min(MAX_BATCH - 1)).unwrap_or(0);
        if let Ok(more) = Arc::clone(&self.slots).try_acquire_many_owned(more) {
            kept.merge(more);
        }

        // Claims for a request are sent after it.
        self.quiet = Quiet::new(self.broker.clock.monotonic());
        self.claims.request_messages(kept.num_permits()).await?;
        self.kept = Some(kept);

        Ok(())
    }

    /// Hands buffered claims back, so that other brokers get them at once.
    async fn hand_back(&mut self) {
        while let Some(Some(incoming)) = self.claims.next().now_or_never() {
            incoming.nak(None).await;
        }
    }
}

async fn handle(broker: Arc<BrokerContext>, taken: Taken) {
    let Taken {
        incoming,
        received,
        slot,
        places,
    } = taken;

    broker.note_waiting(incoming.pending);
    let Some((key, session)) = claimed_session(&broker, &incoming).await else {
        return;
    };

    // A parked session must wait for an operator: another delivery of the claim would change nothing.
    if broker.is_parked(&key) {
        incoming.term().await;
        return;
    }

    // Counted before the work, so that a session that kills its broker is stopped after some attempts.
    let counted = match quarantine::admit_claim(&broker, &incoming, &key, &session).await {
        Ok(ClaimVerdict::Free) => None,
        Ok(ClaimVerdict::Counted(revision)) => Some(revision),
        Ok(ClaimVerdict::Parked) => return,
        Err(error) => {
            tracing::warn!(%session, claim = incoming.sequence, %error, "leaving a claim to the ack timeout");
            return;
        }
    };

    let done = Box::pin(run_claim(
        &broker,
        &incoming,
        received,
        session,
        SessionSlot::new(slot, places),
    ))
    .await;
    // The session ran to its release, so the claim was not the cause of the earlier failures.
    if done && let Some(revision) = counted {
        quarantine::acquit_claim(&broker, &key, revision).await;
    }
}

/// Returns the session that a claim names; a claim that names none, or another than its subject, becomes a dead
/// letter.
async fn claimed_session(broker: &BrokerContext, incoming: &IncomingMessage) -> Option<(String, SessionRef)> {
    let fault = match incoming.decode::<SessionClaim>() {
        Ok(claim) if subject::claim(&claim.session) == incoming.subject => {
            let key = incoming
                .subject
                .strip_prefix("nexus.claim.")
                .unwrap_or_default()
                .to_owned();
            return Some((key, claim.session));
        }
        Ok(claim) => MessageVerdict::new("wrong_session", format!("the claim is for {}", claim.session)),
        Err(error) => MessageVerdict::new(error.reason(), error.to_string()),
    };

    // The claim can never be carried out, and another delivery would not change that.
    match broker
        .bus
        .dead_letter(SERVICE, incoming, &fault, broker.clock.now())
        .await
    {
        Ok(()) => incoming.term().await,
        Err(error) => {
            let (subject, sequence) = (&incoming.subject, incoming.sequence);
            tracing::error!(%subject, sequence, %error, "failed to dead-letter a bad claim");
        }
    }

    None
}

/// Runs the session of a claim. Returns whether it was run to its release.
async fn run_claim(
    broker: &Arc<BrokerContext>,
    incoming: &IncomingMessage,
    received: Instant,
    session: SessionRef,
    slot: SessionSlot,
) -> bool {
    let ack_wait = Duration::from_millis(broker.config.ack_wait_ms);
    let hold = Arc::new(ClaimDeadline::new(Arc::clone(&broker.clock), received, ack_wait));
    // The broker counts the session as running until this guard is dropped.
    let running = broker.enter_session(&session);

    let claimed = ClaimedSession {
        session,
        sequence: incoming.sequence,
        carrier: incoming.carrier(),
        hold,
        slot,
        begun: Mutex::default(),
    };

    // The claim stays ours only as long as the server hears of progress.
    let outcome = tokio::select! {
        outcome = Box::pin(worker::run(broker, &claimed)) => outcome,
        never = show_life(broker, incoming, &claimed.hold) => match never {},
    };
    drop(running);
    let Err(error) = outcome else { return true };

    let session = &claimed.session;
    match error {
        RunSessionError::Stale | RunSessionError::FenceLost => {
            // The other owner works already: every further step of ours would only fail at the fence.
            claimed.hold.forfeit();
            tracing::info!(%session, claim = incoming.sequence, %error, "session has another owner; releasing the claim");
        }
        RunSessionError::HandBack => {
            tracing::info!(%session, claim = incoming.sequence, "session released in the middle of a turn");
            // Immediately, so that another broker continues the turn without waiting for the ack timeout.
            if claimed.hold.is_live() {
                incoming.nak(None).await;
            }
        }
        RunSessionError::BadLedger { .. }
        | RunSessionError::Append(_)
        | RunSessionError::Read(_)
        | RunSessionError::Publish(_)
        | RunSessionError::Approval(_)
        | RunSessionError::Witness(_)
        | RunSessionError::Hold(_) => {
            // A fault of the server must not count against the session.
            if error.is_the_servers() {
                broker.note_trouble();
            }

            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let begun = claimed.begun.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (event_id, dispatch_id) = begun.unzip();
            tracing::warn!(
                event_id = event_id.map(tracing::field::display), dispatch_id = dispatch_id.map(tracing::field::display), %session,
                claim = incoming.sequence, %error, cause, "leaving a session to the ack timeout"
            );
        }
    }

    false
}

/// Sends signs of life while the claim is held. The future never ends by itself: the worker detects a passed deadline
/// before its next effect, at a point where it can stop.
async fn show_life(
    broker: &BrokerContext,
    incoming: &IncomingMessage,
    hold: &ClaimDeadline,
) -> std::convert::Infallible {
    loop {
        pause(PROGRESS_EVERY).await;
        // Without a connection a sign of life would lie in a buffer, and arrive after the deadline.
        if hold.is_live() && broker.bus.is_connected() {
            let before = hold.monotonic_now();
            incoming.send_progress().await;
            hold.extend_from(before);
        }
    }
}
