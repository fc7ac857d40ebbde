//! Claims: messages, at most one per session, that ask a broker to take a session over
//! (`docs/design/sessions.md` §1.1, §1.7).
//!
//! A claim is a hint; the ledger's fence decides who owns the session. Claims carry no message id, because a duplicate
//! window would swallow the next wake-up.

use crate::model::session::SessionRef;
use crate::wire::headers::TraceCarrier;
use crate::wire::session_mark::SessionClaim;
use crate::wire::subject;
use crate::wire::topology::claims_consumer;
use crate::wire::topology::streams::CLAIMS;

use super::connect::Bus;
use super::consume::{PullOptions, PullSettings};
use super::error::{PublishError, ReadStreamError};
use super::fetch::MessageFetcher;
use super::publish::OutgoingMessage;

/// Outcome of publishing a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimedKey {
    /// The claim was stored.
    New,
    /// The session had a claim already.
    AlreadyHeld,
}

/// Publishes a claim of `session`.
///
/// # Errors
/// Returns [`PublishError`] if the server rejects the claim for good.
pub async fn publish(bus: &Bus, session: &SessionRef, carrier: &TraceCarrier) -> Result<ClaimedKey, PublishError> {
    let claim = SessionClaim {
        session: session.clone(),
    };
    let out = OutgoingMessage::new(subject::claim(session), &claim).carrier(carrier);
    match bus.publish(out).await {
        Ok(_) => Ok(ClaimedKey::New),
        Err(PublishError::SubjectFull { .. }) => Ok(ClaimedKey::AlreadyHeld),
        Err(error) => Err(error),
    }
}

/// Pulls the claims of `part` from the consumer that all brokers share, `batch` at a time.
#[must_use]
pub fn pull(bus: &Bus, part: u16, batch: usize) -> PullSettings {
    bus.pull(CLAIMS, &claims_consumer(part), PullOptions { batch })
}

/// Fetches the claims of `part` from the same consumer, for a broker that asks for as many as it has free slots.
#[must_use]
pub fn fetcher(bus: &Bus, part: u16) -> MessageFetcher {
    bus.fetcher(CLAIMS, &claims_consumer(part))
}

/// Deletes the claim with `sequence`. An ack would not be enough: on three replicas the server still rejects new
/// claims for some milliseconds after a confirmed ack. Returns false if the claim was gone already.
///
/// # Errors
/// Returns [`ReadStreamError`] if the leader cannot be asked.
pub async fn release(bus: &Bus, sequence: u64) -> Result<bool, ReadStreamError> {
    bus.delete_message(CLAIMS, sequence).await
}
