//! Claims: at most one message per session, which moves work to an owner (`docs/design/sessions.md` §1.1, §1.7).
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
use super::error::{PublishError, ReadStreamError};
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
#[must_use]
pub fn pull(bus: &Bus, batch: usize) -> Pull {
    bus.pull(CLAIMS, "broker", PullOptions { batch })
}

/// The claims, for a broker that asks for as many as it has free slots.
#[must_use]
pub fn fetcher(bus: &Bus) -> Fetcher {
    bus.fetcher(CLAIMS, "broker")
}

/// Gives a claim back, by its sequence: a confirmed ack still refuses new claims for some milliseconds on three
/// replicas. False where it was gone.
///
/// # Errors
/// [`ReadStreamError`] where the leader cannot be asked.
pub async fn release(bus: &Bus, sequence: u64) -> Result<bool, ReadStreamError> {
    bus.delete_message(CLAIMS, sequence).await
}
