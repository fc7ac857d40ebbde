//! Requests about the owner's chat pages (`nexus.svc.owner.*`), and the record of a change. *Pure.*

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::owner::OwnerLink;
use crate::model::time::UnixMillis;
use crate::wire::envelope::WireMessage;

/// Longest time for which a link can be claimed, in minutes.
pub const MAX_LINK_MINUTES: u32 = 24 * 60;

/// Request of `nexus.svc.owner.offer`. The token of the link stays with the caller: only its hash is told and stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferOwnerLink {
    /// Key of the link in KV `identities`: `link.` and the SHA-256 of its token in lower-case hex.
    pub key: String,
    /// Time for which it can be claimed, in minutes.
    pub minutes: u32,
    /// User that asks, for the record.
    pub by: String,
}

/// Request of `nexus.svc.owner.list`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListOwnerPages {}

/// Answer of `nexus.svc.owner.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerPages {
    /// Links that were claimed, each of which is the binding of a page.
    pub pages: Vec<OwnerLink>,
}

/// Request of `nexus.svc.owner.remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveOwnerPage {
    /// Visitor whose pages become a stranger's.
    pub visitor: String,
    /// User that asks, for the record.
    pub by: String,
}

/// Answer of `nexus.svc.owner.remove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerPagesRemoved {
    /// Number of pages.
    pub removed: usize,
}

/// A change of the owner's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerChange {
    /// A link was offered.
    Offered,
    /// A page is the owner's no more.
    Removed,
}

/// A record in `AUDIT` of a change of the owner's pages. It is written before the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// Id of the operation.
    pub operation: Ulid,
    /// The change.
    pub what: OwnerChange,
    /// Key of the link, or the visitor of the page.
    pub about: String,
    /// User that asked, as the request says.
    pub by: String,
    /// Time of the request.
    pub at: UnixMillis,
}

impl WireMessage for OwnerRecord {
    const SCHEMA: &'static str = "owner_record";
}
