//! `nexus.svc.owner.{offer,list,remove}`: the owner's chat pages for operators, answered by any replica. The server
//! decides which users may ask.

use shared::bus::{Bus, CasError, Kv, OutgoingMessage, PublishError, ReadStreamError, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};
use shared::error_chain::describe_error;
use shared::model::owner::OwnerLink;
use shared::process::identities::remove_stale_links;
use shared::wire::operator::check_speaker;
use shared::wire::operator::owner::{
    ListOwnerPages, MAX_LINK_MINUTES, OfferOwnerLink, OwnerChange, OwnerPages, OwnerPagesRemoved, OwnerRecord,
    RemoveOwnerPage,
};
use shared::wire::subject::owner_audit;
use shared::wire::topology::buckets;

/// Prefix of the keys of links.
const LINK: &str = "link.";
/// Number of digits of a link's hash.
const HASH_DIGITS: usize = 64;

/// The reason why a request about the owner's pages fails.
#[derive(Debug, thiserror::Error)]
enum OwnerError {
    /// No page of the visitor is the owner's.
    #[error("no page of visitor `{0}` is the owner's; `nexus owner list` shows those that are")]
    Absent(String),
    /// The request is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The link exists, or changes at this moment.
    #[error("the link was changed meanwhile; ask again")]
    Changed,
    /// The bucket cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The bucket cannot be written.
    #[error("failed to write the link: {0}")]
    Write(CasError),
    /// The record cannot be written.
    #[error("failed to write the record: {0}")]
    Record(#[from] PublishError),
}

impl From<CasError> for OwnerError {
    fn from(error: CasError) -> Self {
        match error {
            CasError::Conflict { .. } => Self::Changed,
            CasError::Publish(_) | CasError::Read(_) => Self::Write(error),
        }
    }
}

/// Where the owner's pages are kept.
#[derive(Debug, Clone)]
struct OwnerDesk {
    bus: Bus,
    links: Kv<OwnerLink>,
    clock: SharedClock,
    ids: SharedIds,
}

/// Returns the service over `bus`.
#[must_use]
pub fn service_spec(bus: &Bus, clock: &SharedClock, ids: &SharedIds) -> ServiceSpec {
    let offering = OwnerDesk {
        links: bus.kv(buckets::IDENTITIES),
        bus: bus.clone(),
        clock: clock.clone(),
        ids: ids.clone(),
    };
    let (listing, removing) = (offering.clone(), offering.clone());
    ServiceSpec::new("owner", "the owner's chat pages: offer, list, remove")
        .endpoint("offer", move |request: OfferOwnerLink| {
            let desk = offering.clone();
            async move { desk.offer(&request).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("list", move |ListOwnerPages {}| {
            let desk = listing.clone();
            async move { desk.list().await.map_err(|error| refusal(&error)) }
        })
        .endpoint("remove", move |request: RemoveOwnerPage| {
            let desk = removing.clone();
            async move { desk.remove(&request).await.map_err(|error| refusal(&error)) }
        })
}

/// Returns whether `key` is that of a link.
fn is_link_key(key: &str) -> bool {
    let hash = key.strip_prefix(LINK).unwrap_or_default();
    hash.len() == HASH_DIGITS && hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

impl OwnerDesk {
    /// Stores a link that can be claimed once, and removes links that were not claimed in time.
    async fn offer(&self, request: &OfferOwnerLink) -> Result<OwnerLink, OwnerError> {
        check_speaker(&request.by).map_err(OwnerError::Wrong)?;
        if !is_link_key(&request.key) {
            return Err(OwnerError::Wrong(
                "key: expected `link.` and a SHA-256 in hex".to_owned(),
            ));
        }
        if !(1..=MAX_LINK_MINUTES).contains(&request.minutes) {
            return Err(OwnerError::Wrong(format!("minutes: expected 1 to {MAX_LINK_MINUTES}")));
        }

        let now = self.clock.now();
        remove_stale_links(&self.links, now).await?;
        self.record(OwnerChange::Offered, &request.key, &request.by).await?;
        let link = OwnerLink::offered(now, request.minutes);
        self.links.create(&request.key, &link).await?;
        Ok(link)
    }

    async fn list(&self) -> Result<OwnerPages, OwnerError> {
        let entries = self.links.entries().await?;
        let links = entries.into_iter().map(|(_, link)| link.value);
        Ok(OwnerPages {
            pages: links.filter(|link| link.claimed_by.is_some()).collect(),
        })
    }

    async fn remove(&self, request: &RemoveOwnerPage) -> Result<OwnerPagesRemoved, OwnerError> {
        check_speaker(&request.by).map_err(OwnerError::Wrong)?;
        let mut bound = self.links.entries().await?;
        bound.retain(|(_, link)| {
            link.value
                .claimed_by
                .as_ref()
                .is_some_and(|by| by.id == request.visitor)
        });
        if bound.is_empty() {
            return Err(OwnerError::Absent(request.visitor.clone()));
        }

        self.record(OwnerChange::Removed, &request.visitor, &request.by).await?;
        for (key, link) in &bound {
            self.links.delete(key, Some(link.revision)).await?;
        }
        Ok(OwnerPagesRemoved { removed: bound.len() })
    }

    async fn record(&self, what: OwnerChange, about: &str, by: &str) -> Result<(), OwnerError> {
        let record = OwnerRecord {
            operation: self.ids.ulid(),
            what,
            about: about.to_owned(),
            by: by.to_owned(),
            at: self.clock.now(),
        };
        let out = OutgoingMessage::new(owner_audit(about), &record).msg_id(record.operation.to_string());
        self.bus.publish(out).await?;
        tracing::info!(about, by, ?what, "the owner's chat pages are changed by an operator");
        Ok(())
    }
}

/// Returns the status and the text of `error`.
fn refusal(error: &OwnerError) -> (usize, String) {
    let status = match error {
        OwnerError::Absent(_) => 404,
        OwnerError::Wrong(_) => 400,
        OwnerError::Changed => 409,
        OwnerError::Read(_) | OwnerError::Write(_) | OwnerError::Record(_) => {
            tracing::warn!(error = describe_error(error), "request about the owner's pages failed");
            503
        }
    };
    (status, error.to_string())
}

#[cfg(test)]
mod tests {
    use shared::model::owner::link_key;

    use super::*;

    #[test]
    fn only_a_hash_is_the_key_of_a_link() {
        assert!(is_link_key(&link_key("a token")));
        for key in [
            "",
            "link.",
            "link.00",
            "file.x",
            &link_key("x").to_uppercase(),
            &format!("{}0", link_key("x")),
        ] {
            assert!(!is_link_key(key), "{key}");
        }
    }
}
