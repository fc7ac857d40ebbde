//! Quarantine: a session whose claim comes again and again without anything being written is parked, visibly.
//!
//! The mark is in KV `session_overrides` under the session's two subject tokens, the claim is on the dead letters.
//! Once the mark is gone (`nexus session release`), whoever watched it go claims the session again.

use std::sync::Arc;

use shared::bus::dead_letter::Verdict;
use shared::bus::{CasError, Incoming, KvEvent, PublishError, ReadStreamError, claim};
use shared::model::session::SessionRef;
use shared::wire::headers::Carrier;
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;
use shared::wire::topology::streams::LEDGER;

use crate::broker::{Broker, SERVICE};

/// Deliveries of one claim after which its session is looked at.
pub const MAX_DELIVERIES: u64 = 5;

/// A session could not be parked.
#[derive(Debug, thiserror::Error)]
pub enum ParkSessionError {
    /// Its ledger was not read.
    #[error("its ledger was not read: {0}")]
    Read(#[from] ReadStreamError),
    /// The dead letter was not written.
    #[error("the dead letter was not written: {0}")]
    Letter(#[from] PublishError),
    /// The mark was not written.
    #[error("the mark was not written: {0}")]
    Mark(#[from] CasError),
}

/// Parks `session` where its claim was delivered more than [`MAX_DELIVERIES`] times and nothing was appended to its
/// ledger since the claim was made, unless the server itself gave trouble lately. Says whether it did.
///
/// # Errors
/// [`ParkSessionError`]; the claim comes again then.
pub async fn park_if_stuck(
    broker: &Broker,
    incoming: &Incoming,
    key: &str,
    session: &SessionRef,
) -> Result<bool, ParkSessionError> {
    if incoming.delivered <= MAX_DELIVERIES || broker.had_trouble() {
        return Ok(false);
    }
    let last = broker.bus.last_on_subject(LEDGER, &subject::ledger(session)).await?;
    if last.is_some_and(|last| last.published_at >= incoming.published_at) {
        return Ok(false);
    }
    let detail = format!(
        "claim of {session} was delivered {} times without a ledger append",
        incoming.delivered
    );
    let verdict = Verdict::new("quarantined", &detail);
    let now = broker.clock.now();
    broker.bus.dead_letter(SERVICE, incoming, &verdict, now).await?;
    let mark = SessionMark {
        session: session.clone(),
        quarantined: Some(detail),
        since: now,
    };
    broker.bus.kv::<SessionMark>(SESSION_OVERRIDES).put(key, &mark).await?;
    broker.park(key, Some(session.clone()));
    incoming.term().await;
    metrics::counter!("nexus_broker_quarantined_total").increment(1);
    tracing::error!(%session, deliveries = incoming.delivered, "session is quarantined");
    Ok(true)
}

/// Keeps the broker's knowledge of parked sessions current until the process is asked to stop.
pub async fn watch(broker: Arc<Broker>) {
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
                        since: _,
                    },
                revision: _,
            } => {
                broker.park(&key, Some(session));
            }
            KvEvent::Put {
                key,
                value: SessionMark { quarantined: None, .. },
                revision: _,
            }
            | KvEvent::Gone { key, revision: _ } => release(&broker, &key).await,
            KvEvent::Bad { key, error } => tracing::warn!(key, error, "mark of a session cannot be read"),
            KvEvent::Current => {}
        }
    }
}

async fn release(broker: &Broker, key: &str) {
    let Some(session) = broker.park(key, None) else { return };
    tracing::info!(%session, "session is out of quarantine");
    if let Err(error) = claim::publish(&broker.bus, &session, &Carrier::default()).await {
        tracing::error!(%session, %error, "released session was not claimed");
    }
}
