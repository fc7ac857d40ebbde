//! Claims: pulled for free slots, kept alive while they are worked on, and never acknowledged past their deadline.
//!
//! Each part of the sessions has a consumer of its own. A broker asks all of them: for the parts that it reads it asks
//! first, and for any other only while it has slots to spare and behind their own readers, so that it gets the claims
//! for which those have no slot, or that a broker that is gone has left behind.
//!
//! A claim is requested only if a slot is reserved for it, so that no claim lies here while other brokers could work
//! on it. A claim counts as received at the last time at which certainly none was on its way (`quiet`).

mod quiet;
mod source;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use shared::bus::dead_letter::MessageVerdict;
use shared::bus::{ConsumeError, IncomingMessage};
use shared::clock::pause;
use shared::model::session::SessionRef;
use shared::wire::session_mark::SessionClaim;
use shared::wire::subject;
use shared::wire::topology::SESSION_PARTS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::broker::BrokerContext;
use crate::broker::newer_ledgers::TRY_AGAIN;
use crate::config::SERVICE;
use crate::error::RunSessionError;
use crate::queue::claim_deadline::ClaimDeadline;
use crate::queue::quarantine;
use crate::queue::quarantine::ClaimVerdict;
use crate::queue::slot::SessionSlot;
use crate::worker::{self, ClaimedSession};

use self::source::{ClaimSlots, ClaimSource};

/// Interval at which a held claim shows that its holder lives.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Maximum age of a claim when its work begins; an older one is left to the ack wait. The first sign of life must be
/// sent before the ack wait ends.
const MAX_AGE: Duration = Duration::from_millis(1_500);

/// Runs claimed sessions until shutdown is requested and the running ones are done or handed back. `tell` is called
/// with whether claims can be requested.
pub async fn serve(broker: &Arc<BrokerContext>, tell: impl Fn(Result<(), &ConsumeError>)) {
    let slots = ClaimSlots::new(broker.config.max_active_turns);
    let workers = Mutex::new(JoinSet::new());
    let run = |taken| {
        let mut workers = workers.lock().unwrap_or_else(PoisonError::into_inner);
        while workers.try_join_next().is_some() {}
        workers.spawn(handle(Arc::clone(broker), taken));
    };

    // A set of futures polls only those that are woken.
    let parts = 0..SESSION_PARTS;
    let mut sources: FuturesUnordered<_> = parts
        .map(|part| take_claims(broker, &slots, part, &run, &tell))
        .collect();
    let taking = async { while sources.next().await.is_some() {} };
    let stopping = async {
        broker.shutdown.requested().await;
        broker.activity.begin_stop(broker.clock.monotonic());
    };
    tokio::join!(stopping, taking);
    drop(sources);

    let mut workers = workers.into_inner().unwrap_or_else(PoisonError::into_inner);
    while workers.join_next().await.is_some() {}
}

/// Takes the claims of `part` until shutdown is requested, and hands those back that are not begun.
async fn take_claims(
    broker: &Arc<BrokerContext>,
    slots: &ClaimSlots,
    part: u16,
    run: &impl Fn(TakenClaim),
    tell: &impl Fn(Result<(), &ConsumeError>),
) {
    let mut source = ClaimSource::new(broker, slots, part);
    let stop = broker.shutdown.clone();
    loop {
        let taken = tokio::select! {
            biased;
            () = stop.requested() => break,
            taken = source.next(tell) => taken,
        };
        run(taken);
    }

    source.hand_back().await;
}

/// A claim, the earliest instant at which it can have been sent to us, and its slot.
struct TakenClaim {
    part: u16,
    incoming: IncomingMessage,
    received: Instant,
    slot: OwnedSemaphorePermit,
    /// Places of sessions that have lent their slots.
    places: Arc<Semaphore>,
}

async fn handle(broker: Arc<BrokerContext>, taken: TakenClaim) {
    let TakenClaim {
        part,
        incoming,
        received,
        slot,
        places,
    } = taken;

    broker.activity.note_waiting(part, incoming.pending);
    let Some((key, session)) = claimed_session(&broker, &incoming).await else {
        return;
    };

    // A parked session must wait for an operator: another delivery of the claim would change nothing.
    if broker.activity.is_parked(&key) {
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
    // The claim was not the cause of the earlier failures.
    if done && let Some(revision) = counted {
        quarantine::acquit_claim(&broker, &key, revision).await;
    }
}

/// Returns the session that a claim names; a claim that names none, or another than its subject, becomes a dead
/// letter.
async fn claimed_session(broker: &BrokerContext, incoming: &IncomingMessage) -> Option<(String, SessionRef)> {
    let fault = match incoming.decode::<SessionClaim>() {
        Ok(claim) if subject::claim(&claim.session) == incoming.subject => {
            return Some((subject::session_key(&claim.session), claim.session));
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

/// Runs the session of a claim. Returns whether the session is not to blame: it was run to its release, or waits for a
/// broker of a later release.
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
    let running = broker.activity.enter_session(&session);

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
    let session = &claimed.session;
    let Err(error) = outcome else {
        broker.newer.forget(session);
        return true;
    };

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
        RunSessionError::NewerLedger { sequence, source } => {
            let what = format!("record {sequence}: {source}");
            if broker.newer.note(session, what, broker.clock.monotonic()) {
                tracing::warn!(%session, sequence, %source, "session waits for a broker of a later release");
            }
            if claimed.hold.is_live() {
                incoming.nak(Some(TRY_AGAIN)).await;
            }
            return true;
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
                broker.activity.note_trouble(broker.clock.monotonic());
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
