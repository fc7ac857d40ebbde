//! Claims: at most one message per session, which moves work to an owner (`sessions.md`, rules 1 and 7).
//!
//! A claim is a hint; ownership is the ledger's fence. Claims carry no message id: a duplicate window would
//! swallow the next wake-up.

use crate::model::session::SessionRef;
use crate::wire::headers::Carrier;
use crate::wire::session_mark::Claim;
use crate::wire::subject;
use crate::wire::topology::streams::CLAIMS;

use super::connect::Bus;
use super::consume::{Pull, PullOptions};
use super::error::{ConsumeError, PublishError, ReadStreamError};
use super::fetch::Fetcher;
use super::publish::Outgoing;

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// It is there now.
    New,
    /// One was there already.
    AlreadyHeld,
}

/// Claims `session`.
///
/// # Errors
/// [`PublishError`] where the server refuses it for good.
pub async fn publish(bus: &Bus, session: &SessionRef, carrier: &Carrier) -> Result<Claimed, PublishError> {
    let claim = Claim {
        session: session.clone(),
    };
    let out = Outgoing::new(subject::claim(session), &claim).carrier(carrier);
    match bus.publish(out).await {
        Ok(_) => Ok(Claimed::New),
        Err(PublishError::SubjectFull { .. }) => Ok(Claimed::AlreadyHeld),
        Err(error) => Err(error),
    }
}

/// The claims, for any broker.
///
/// # Errors
/// [`ConsumeError`] where there is no such consumer.
pub async fn pull(bus: &Bus, batch: usize) -> Result<Pull, ConsumeError> {
    bus.pull(CLAIMS, "broker", PullOptions { batch }).await
}

/// The claims, for a broker that asks for as many as it has free slots.
///
/// # Errors
/// [`ConsumeError`] where there is no such consumer.
pub async fn fetcher(bus: &Bus) -> Result<Fetcher, ConsumeError> {
    bus.fetcher(CLAIMS, "broker").await
}

/// Gives a claim back, by its sequence: a confirmed ack still refuses new claims for some milliseconds on three
/// replicas. False where it was gone.
///
/// # Errors
/// [`ReadStreamError`] where the leader cannot be asked.
pub async fn release(bus: &Bus, sequence: u64) -> Result<bool, ReadStreamError> {
    bus.delete_message(CLAIMS, sequence).await
}
