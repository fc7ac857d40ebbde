//! Owner links: a link that works once makes a browser the owner's. *Pure.*
//!
//! `nexus up` and `nexus owner link` write an [`OwnerLink`] into KV `identities` under [`link_key`]. The chat page
//! that opens the link claims it by compare-and-set. The claimed value is itself the binding, so no crash can use up
//! the link without making the browser the owner's. Source: `docs/design/trust.md` §1.2.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::identity::{Identities, KnownPerson};
use super::origin::WEBCHAT;
use super::time::UnixMillis;

/// Default time for which a link can be claimed, in minutes.
pub const LINK_MINUTES: u32 = 15;
/// Id of the person that is added if `identities.yaml` names no owner.
const OWNER: &str = "owner";

/// A visitor of a chat page.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatVisitor {
    /// Account of the page (`adapter.webchat.account`).
    pub account: String,
    /// Id of the visitor, derived by the server from the page's key.
    pub id: String,
}

/// Returns the key in KV `identities` of the link with this token. The bucket contains only the token's hash, so a
/// reader of the bucket cannot claim a link.
#[must_use]
pub fn link_key(token: &str) -> String {
    format!("link.{}", HEXLOWER.encode(&Sha256::digest(token)))
}

/// An owner link, offered or claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerLink {
    /// Time the link was made.
    pub made_at: UnixMillis,
    /// Last instant at which the link can be claimed.
    pub expires_at: UnixMillis,
    /// Visitor that claimed the link; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<ChatVisitor>,
    /// Time the link was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<UnixMillis>,
}

/// The reason why a link cannot be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimLinkError {
    /// The link does not exist, or another page used it.
    #[error("this link was already used or does not exist; run `nexus owner link` for a new one")]
    Used,
    /// The link has expired.
    #[error("this link has expired; run `nexus owner link` for a new one")]
    Expired,
}

impl OwnerLink {
    /// Returns a link that can be claimed for `minutes` from `now`.
    #[must_use]
    pub fn offered(now: UnixMillis, minutes: u32) -> Self {
        Self {
            made_at: now,
            expires_at: now.plus(i64::from(minutes) * 60_000),
            claimed_by: None,
            claimed_at: None,
        }
    }

    /// Returns the link as claimed by `visitor`. The same visitor may claim it again, because a response may be lost.
    ///
    /// # Errors
    /// Returns [`ClaimLinkError`] if another visitor has claimed the link, or it has expired.
    pub fn claim(self, visitor: &ChatVisitor, now: UnixMillis) -> Result<Self, ClaimLinkError> {
        match &self.claimed_by {
            Some(other) if other == visitor => Ok(self),
            Some(_) => Err(ClaimLinkError::Used),
            None if now > self.expires_at => Err(ClaimLinkError::Expired),
            None => Ok(Self {
                claimed_by: Some(visitor.clone()),
                claimed_at: Some(now),
                ..self
            }),
        }
    }

    /// Returns whether the link has expired without being claimed.
    #[must_use]
    pub fn is_stale(&self, now: UnixMillis) -> bool {
        self.claimed_by.is_none() && now > self.expires_at
    }
}

impl Identities {
    /// Returns these identities with the chat page's `visitors` as addresses of the owner. If there is no owner, the
    /// person `owner` is added.
    #[must_use]
    pub fn with_owner_pages<'a>(mut self, visitors: impl Iterator<Item = &'a ChatVisitor>) -> Self {
        let mut visitors = visitors.peekable();
        if visitors.peek().is_none() {
            return self;
        }

        let owner = self.owner.get_or_insert_with(|| OWNER.to_owned()).clone();
        if !self.persons.iter().any(|person| person.id == owner) {
            self.persons.push(KnownPerson {
                id: owner.clone(),
                ..KnownPerson::default()
            });
        }

        if let Some(person) = self.persons.iter_mut().find(|person| person.id == owner) {
            let addresses = person.addresses.entry(WEBCHAT.to_owned()).or_default();
            addresses.extend(visitors.map(|visitor| visitor.id.clone()));
        }

        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_kept_under_the_hash_of_its_token() {
        let key = "link.9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert_eq!(link_key("test"), key);
    }

    fn visitor(id: &str) -> ChatVisitor {
        ChatVisitor {
            account: "default".to_owned(),
            id: id.to_owned(),
        }
    }

    #[test]
    fn a_link_is_claimed_once_and_in_time() {
        let link = OwnerLink::offered(UnixMillis(1_000), 1);
        let claimed = link.clone().claim(&visitor("a"), UnixMillis(61_000)).unwrap();
        assert_eq!(claimed.claimed_by, Some(visitor("a")));
        assert_eq!(
            claimed.clone().claim(&visitor("a"), UnixMillis(i64::MAX)),
            Ok(claimed.clone())
        );
        assert_eq!(
            claimed.clone().claim(&visitor("b"), UnixMillis(1_000)),
            Err(ClaimLinkError::Used)
        );

        assert_eq!(
            link.clone().claim(&visitor("a"), UnixMillis(61_001)),
            Err(ClaimLinkError::Expired)
        );
        assert!(link.is_stale(UnixMillis(61_001)) && !claimed.is_stale(UnixMillis(i64::MAX)));
    }

    #[test]
    fn a_page_is_an_address_of_the_owner() {
        let pages = [visitor("v1"), visitor("v2")];
        let made = Identities::default().with_owner_pages(pages.iter());
        assert_eq!(made.owner.as_deref(), Some("owner"));
        assert_eq!(
            made.find_person(WEBCHAT, "v2").map(|person| person.id.as_str()),
            Some("owner")
        );
        assert_eq!(made.find_person("telegram", "v2"), None);

        let me = Identities {
            owner: Some("me".to_owned()),
            persons: vec![KnownPerson {
                id: "me".to_owned(),
                ..KnownPerson::default()
            }],
            ..Identities::default()
        };

        let merged = me.clone().with_owner_pages(pages.iter());
        assert_eq!((merged.persons.len(), merged.find_faults()), (1, Vec::new()));
        assert_eq!(me.clone().with_owner_pages([].iter()), me);
    }
}
