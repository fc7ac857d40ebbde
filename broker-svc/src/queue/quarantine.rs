//! Quarantine: a session whose claim is tried again and again without any append is parked, visibly.
//!
//! A claim may be delivered often without a try: a broker that had it died, or was stalled. So once it was delivered
//! often, its tries are counted in KV, durably and before each begins; a session without trouble costs nothing. The
//! mark is in KV `session_overrides` under the session's two subject tokens, and the claim becomes a dead letter.
//! Once the mark is removed (`nexus session release`), every broker that sees the removal claims the session again.

use std::sync::Arc;

use shared::bus::dead_letter::MessageVerdict;
use shared::bus::{CasError, IncomingMessage, KvEvent, PublishError, ReadStreamError, claim};
use shared::model::session::SessionRef;
use shared::wire::headers::TraceCarrier;
use shared::wire::session_mark::{ClaimTries, SessionMark};
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;
use shared::wire::topology::streams::LEDGER;

use crate::broker::BrokerContext;
use crate::config::SERVICE;

/// Number of deliveries of one claim after which its tries are counted.
pub const MAX_DELIVERIES: u64 = 5;
/// Number of counted tries after which the session is parked.
pub const MAX_TRIES: u32 = 5;

/// Decision about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// Begin: nothing is known against the session.
    Free,
    /// Begin: the try is counted in the mark of this revision.
    Counted(u64),
    /// Do not begin: the session is parked.
    Parked,
}

/// Error while deciding about a claim or parking its session.
#[derive(Debug, thiserror::Error)]
pub enum ParkSessionError {
    /// The session's ledger could not be read.
    #[error("failed to read the session's ledger: {0}")]
    Read(#[from] ReadStreamError),
    /// The dead letter could not be written.
    #[error("failed to write the dead letter: {0}")]
    Letter(#[from] PublishError),
    /// The mark could not be written.
    #[error("failed to write the quarantine mark: {0}")]
    Mark(#[from] CasError),
}

/// Decides whether the work of a claim may begin. If a claim was delivered more than [`MAX_DELIVERIES`] times,
/// without an append to its session's ledger since it was made, its tries are counted; after [`MAX_TRIES`] of them
/// the session is parked. Trouble with the server lately proves nothing against a session.
///
/// # Errors
/// Returns [`ParkSessionError`]; the claim is then delivered again.
pub async fn admit_claim(
    broker: &BrokerContext,
    incoming: &IncomingMessage,
    key: &str,
    session: &SessionRef,
) -> Result<ClaimVerdict, ParkSessionError> {
    // A session that waits for a later release is delivered again and again, and is not to blame.
    if incoming.delivered <= MAX_DELIVERIES
        || broker.newer.contains(session)
        || broker.activity.had_trouble(broker.clock.monotonic())
    {
        return Ok(ClaimVerdict::Free);
    }

    let last = broker.bus.last_on_subject(LEDGER, &subject::ledger(session)).await?;
    // An append in the claim's own millisecond was before the claim: no append follows a claim as fast as that.
    if last.is_some_and(|last| last.published_at > incoming.published_at) {
        return Ok(ClaimVerdict::Free);
    }

    // Only now is the claim suspicious, so ordinary claims need no read of KV.
    let marks = broker.bus.kv::<SessionMark>(SESSION_OVERRIDES);
    let (mark, revision) = marks.find(key).await?;
    if mark.as_ref().is_some_and(|mark| mark.quarantined.is_some()) {
        incoming.term().await;
        return Ok(ClaimVerdict::Parked);
    }

    // The count belongs to one claim: a later claim of the session starts at zero.
    let tries = mark.and_then(|mark| mark.tries);
    let begun = tries
        .filter(|tries| tries.claim == incoming.place())
        .map_or(0, |tries| tries.begun);
    if begun >= MAX_TRIES {
        park_session(broker, incoming, key, session, begun).await?;
        return Ok(ClaimVerdict::Parked);
    }

    // Written before the work with a compare-and-set: two brokers cannot use the same attempt.
    let counted = SessionMark {
        session: session.clone(),
        quarantined: None,
        tries: Some(ClaimTries {
            claim: incoming.place(),
            begun: begun + 1,
        }),
        since: broker.clock.now(),
    };

    Ok(ClaimVerdict::Counted(marks.update(key, &counted, revision).await?))
}

async fn park_session(
    broker: &BrokerContext,
    incoming: &IncomingMessage,
    key: &str,
    session: &SessionRef,
    begun: u32,
) -> Result<(), ParkSessionError> {
    let deliveries = incoming.delivered;
    let detail =
        format!("claim of {session} was delivered {deliveries} times and begun {begun} times without a ledger append");
    let verdict = MessageVerdict::new("quarantined", &detail);
    let now = broker.clock.now();
    // The dead letter first: it is the operators' notice, also if the mark cannot be written.
    broker.bus.dead_letter(SERVICE, incoming, &verdict, now).await?;

    let mark = SessionMark {
        session: session.clone(),
        quarantined: Some(detail),
        tries: None,
        since: now,
    };

    broker.bus.kv::<SessionMark>(SESSION_OVERRIDES).put(key, &mark).await?;
    broker.activity.set_parked(key, Some(session.clone()));
    incoming.term().await;
    metrics::counter!("nexus_broker_quarantined_total").increment(1);
    tracing::error!(%session, deliveries, begun, "session quarantined");

    Ok(())
}

/// Removes the mark of `revision` after a counted try that went well. A mark that stays is about a claim that is
/// gone.
pub async fn acquit_claim(broker: &BrokerContext, key: &str, revision: u64) {
    let marks = broker.bus.kv::<SessionMark>(SESSION_OVERRIDES);
    if let Err(error) = marks.delete(key, Some(revision)).await {
        tracing::debug!(key, %error, "failed to delete the record of a claim attempt");
    }
}

/// Keeps the broker's knowledge of parked sessions current until shutdown is requested.
pub async fn watch_marks(broker: Arc<BrokerContext>) {
    let mut marks = broker.bus.kv::<SessionMark>(SESSION_OVERRIDES).watch_all();
    let stop = broker.shutdown.clone();
    loop {
        let event = tokio::select! {
            () = stop.requested() => return,
            event = marks.next() => event,
        };
        match event {
            KvEvent::Put {
                key,
                value:
                    SessionMark {
                        session,
                        quarantined: Some(_),
                        tries: _,
                        since: _,
                    },
                revision: _,
            } => {
                broker.activity.set_parked(&key, Some(session));
            }
            KvEvent::Put {
                key,
                value: SessionMark { quarantined: None, .. },
                revision: _,
            }
            | KvEvent::Gone { key, revision: _ } => release_session(&broker, &key).await,
            KvEvent::Bad { key, error, .. } => tracing::warn!(key, error, "failed to read a session mark"),
            KvEvent::Anew | KvEvent::Current => {}
        }
    }
}

async fn release_session(broker: &BrokerContext, key: &str) {
    let Some(session) = broker.activity.set_parked(key, None) else {
        return;
    };
    tracing::info!(%session, "session released from quarantine");
    if let Err(error) = claim::publish(&broker.bus, &session, &TraceCarrier::default()).await {
        tracing::error!(%session, %error, "failed to claim a released session");
    }
}
