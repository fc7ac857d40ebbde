//! Claims: pulled for free slots, kept alive while they are worked on, never spoken of past their deadline.
//!
//! A claim counts as received when it can at the latest have been sent: claims that lie in the client's buffer while
//! all slots are taken grow old there, and what has grown too old is left to the ack wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use shared::bus::dead_letter::Verdict;
use shared::bus::{ConsumeError, Incoming, Pull, claim};
use shared::clock::pause;
use shared::model::session::SessionRef;
use shared::wire::session_mark::Claim;
use shared::wire::subject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::broker::{Broker, SERVICE};
use crate::error::RunSessionError;
use crate::hold::Hold;
use crate::quarantine;
use crate::worker::{self, Claimed};

/// How often a held claim shows that its holder lives.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Claims asked for at once, at most.
const MAX_BATCH: usize = 64;
/// How old a claim may be when its work begins; an older one is left to the ack wait.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Runs claimed sessions until the process is asked to stop and the running ones are done or handed back.
///
/// # Errors
/// [`ConsumeError`] where there is no such consumer.
pub async fn serve(broker: &Arc<Broker>) -> Result<(), ConsumeError> {
    let mut source = Source::open(Arc::clone(broker)).await?;
    let slots = Arc::new(Semaphore::new(broker.config.max_active_turns));
    let mut workers = JoinSet::new();
    let stop = broker.shutdown.clone();
    loop {
        while workers.try_join_next().is_some() {}
        let slot = tokio::select! {
            biased;
            () = stop.requested() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let (incoming, received) = tokio::select! {
            biased;
            () = stop.requested() => break,
            next = source.next() => next,
        };
        let Ok(slot) = slot else { break };
        workers.spawn(handle(Arc::clone(broker), incoming, received, slot));
    }
    broker.begin_stop();
    source.hand_back().await;
    while workers.join_next().await.is_some() {}
    Ok(())
}

/// The claims, each with the earliest instant at which it can have been sent to us.
struct Source {
    broker: Arc<Broker>,
    pull: Pull,
    batch: usize,
    /// When the client's buffer was last seen empty.
    empty_at: Instant,
    /// When the last claims were taken out. What comes now was asked for after all but the last of these.
    taken: VecDeque<Instant>,
}

impl Source {
    async fn open(broker: Arc<Broker>) -> Result<Self, ConsumeError> {
        let batch = (broker.config.max_active_turns / 4).clamp(1, MAX_BATCH);
        let pull = claim::pull(&broker.bus, batch).await?;
        let empty_at = broker.clock.monotonic();
        Ok(Self {
            broker,
            pull,
            batch,
            empty_at,
            taken: VecDeque::new(),
        })
    }

    async fn next(&mut self) -> (Incoming, Instant) {
        loop {
            let now = self.broker.clock.monotonic();
            let buffered = self.pull.next().now_or_never();
            let (incoming, received) = match buffered {
                Some(incoming) => (incoming, self.oldest()),
                None => {
                    self.empty_at = now;
                    let incoming = self.pull.next().await;
                    self.empty_at = self.broker.clock.monotonic();
                    (incoming, self.empty_at)
                }
            };
            let age = self.broker.clock.monotonic().saturating_duration_since(received);
            if age <= MAX_AGE {
                self.took();
                return (incoming, received);
            }
            tracing::debug!(
                age_ms = age.as_millis(),
                "claims lay too long and are left to the ack wait"
            );
            match claim::pull(&self.broker.bus, self.batch).await {
                Ok(pull) => self.pull = pull,
                Err(error) => tracing::debug!(%error, "claims cannot be pulled anew yet"),
            }
            self.empty_at = self.broker.clock.monotonic();
            self.taken.clear();
        }
    }

    /// The client asks for at most one and a half batches ahead of what was taken out.
    fn ahead(&self) -> usize {
        2 * self.batch
    }

    fn oldest(&self) -> Instant {
        match self.taken.front() {
            Some(&taken) if self.taken.len() >= self.ahead() => taken.max(self.empty_at),
            Some(_) | None => self.empty_at,
        }
    }

    fn took(&mut self) {
        if self.taken.len() >= self.ahead() {
            self.taken.pop_front();
        }
        self.taken.push_back(self.broker.clock.monotonic());
    }

    /// Gives what lies in the buffer to other brokers at once.
    async fn hand_back(&mut self) {
        while let Some(incoming) = self.pull.next().now_or_never() {
            incoming.nak(None).await;
        }
    }
}

async fn handle(broker: Arc<Broker>, incoming: Incoming, received: Instant, slot: OwnedSemaphorePermit) {
    broker.note_waiting(incoming.pending);
    let Some((key, session)) = named(&broker, &incoming).await else {
        return;
    };
    if broker.is_parked(&key) {
        incoming.term().await;
        return;
    }
    match quarantine::park_if_stuck(&broker, &incoming, &key, &session).await {
        Ok(false) => {}
        Ok(true) => return,
        Err(error) => {
            tracing::warn!(%session, %error, "claim is left to the ack wait");
            return;
        }
    }
    let slots = metrics::gauge!("nexus_broker_slots_in_use");
    slots.increment(1);
    work(&broker, &incoming, received, session).await;
    slots.decrement(1);
    drop(slot);
}

/// Which session a claim names; one that names none, or another than its subject, goes to the dead letters.
async fn named(broker: &Broker, incoming: &Incoming) -> Option<(String, SessionRef)> {
    let fault = match incoming.decode::<Claim>() {
        Ok(claim) if subject::claim(&claim.session) == incoming.subject => {
            let key = incoming
                .subject
                .strip_prefix("nexus.claim.")
                .unwrap_or_default()
                .to_owned();
            return Some((key, claim.session));
        }
        Ok(claim) => Verdict::new("wrong_session", format!("the claim is for {}", claim.session)),
        Err(error) => Verdict::new(error.reason(), error.to_string()),
    };
    match broker
        .bus
        .dead_letter(SERVICE, incoming, &fault, broker.clock.now())
        .await
    {
        Ok(()) => incoming.term().await,
        Err(error) => tracing::error!(sequence = incoming.sequence, %error, "bad claim was not dead-lettered"),
    }
    None
}

async fn work(broker: &Arc<Broker>, incoming: &Incoming, received: Instant, session: SessionRef) {
    let ack_wait = Duration::from_millis(broker.config.ack_wait_ms);
    let hold = Arc::new(Hold::new(Arc::clone(&broker.clock), received, ack_wait));
    let running = broker.enter(&session);
    let claimed = Claimed {
        session,
        sequence: incoming.sequence,
        carrier: incoming.carrier(),
        hold,
    };
    let outcome = tokio::select! {
        outcome = worker::run(broker, &claimed) => outcome,
        never = show_life(broker, incoming, &claimed.hold) => match never {},
    };
    drop(running);
    let Err(error) = outcome else { return };
    let session = &claimed.session;
    match error {
        RunSessionError::Stale | RunSessionError::FenceLost => {
            claimed.hold.forfeit();
            tracing::info!(%session, claim = incoming.sequence, %error, "session is left to its owner");
        }
        RunSessionError::HandBack => {
            tracing::info!(%session, claim = incoming.sequence, "session is handed back in the middle of a turn");
            if claimed.hold.is_live() {
                incoming.nak(None).await;
            }
        }
        RunSessionError::BadLedger { .. }
        | RunSessionError::Append(_)
        | RunSessionError::Read(_)
        | RunSessionError::Publish(_) => {
            if error.is_the_servers() {
                broker.note_trouble();
            }
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%session, claim = incoming.sequence, %error, cause, "session is left to the ack wait");
        }
    }
}

/// Shows signs of life while the claim is held. Never ends by itself: a deadline that passes is found out by the
/// worker before its next effect, at a point where it can stop.
async fn show_life(broker: &Broker, incoming: &Incoming, hold: &Hold) -> std::convert::Infallible {
    loop {
        pause(PROGRESS_EVERY).await;
        // Away from the server a sign of life would lie in a buffer, and arrive when it is none.
        if hold.is_live() && broker.bus.is_connected() {
            let before = hold.before();
            incoming.progress().await;
            hold.extend(before);
        }
    }
}
