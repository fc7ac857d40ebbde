//! Claim of the owner's link by a chat page: a compare-and-set on the link's own value, so that two pages, two replicas
//! or a restart never make two owners of one link.

use shared::bus::{Bus, CasError, ReadStreamError};
use shared::model::owner::{ChatVisitor, ClaimLinkError, OwnerLink, link_key};
use shared::model::time::UnixMillis;
use shared::wire::topology::buckets;

/// Largest number of tries of a claim if others write at the same time.
const MAX_TRIES: usize = 4;

/// Reason why a page did not become the owner's.
#[derive(Debug, thiserror::Error)]
pub enum ClaimOwnerError {
    /// The link cannot be claimed by this page.
    #[error(transparent)]
    Link(#[from] ClaimLinkError),
    /// The link cannot be read now.
    #[error("the link cannot be read")]
    Read(#[from] ReadStreamError),
    /// The claim cannot be stored now.
    #[error("the claim cannot be stored")]
    Store(#[from] CasError),
}

/// Makes `visitor` the owner through the link with this token.
///
/// # Errors
/// Returns [`ClaimOwnerError`] if the link cannot be claimed, read or stored; the link is used up only if this
/// succeeds.
pub async fn claim_owner(
    bus: &Bus,
    token: &str,
    visitor: &ChatVisitor,
    now: UnixMillis,
) -> Result<(), ClaimOwnerError> {
    let links = bus.kv::<OwnerLink>(buckets::IDENTITIES);
    let key = link_key(token);

    let mut last = ClaimOwnerError::Link(ClaimLinkError::Used);
    for _ in 0..MAX_TRIES {
        let entry = links.get(&key).await?.ok_or(ClaimLinkError::Used)?;
        let claimed = entry.value.claim(visitor, now)?;
        match links.update(&key, &claimed, entry.revision).await {
            Ok(_) => return Ok(()),
            // Another writer came first: the next try reads that value.
            Err(error @ CasError::Conflict { .. }) => last = error.into(),
            Err(error) => return Err(error.into()),
        }
    }

    Err(last)
}
