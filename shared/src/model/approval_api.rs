//! Questions to and answers of `nexus.svc.approval.*`, in JSON. *Pure.* Source: `docs/design/sessions.md` §8.
//!
//! Whoever may ask `decide` vouches for who speaks: the service checks whether that person may, not whether it is they.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{ApprovalStatus, Confirmation, Party};

/// `list`: newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListApprovals {
    /// Only those that stand there; none = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ApprovalStatus>,
    /// At most this many; 0 = 50.
    pub limit: usize,
}

/// Answer of `list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalList {
    /// They.
    pub approvals: Vec<Confirmation>,
}

/// `get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetApproval {
    /// Its id. The code on its card is for replies in a chat, and opens nothing here.
    pub id: String,
}

/// `decide`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// Its id. The code on its card is for replies in a chat, and opens nothing here.
    pub id: String,
    /// Yes or no.
    pub approve: bool,
    /// Who says so.
    pub by: Party,
    /// How their word came: `cli`, `http`, `link`, `chat`, ….
    pub via: String,
    /// The arguments as they want them; none = as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// Hash of the arguments that they were shown; where others stand, nothing is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_hash: Option<String>,
    /// What they write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// Answer of `decide`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalAnswer {
    /// The approval's id.
    pub id: String,
    /// Where it stands now.
    pub status: ApprovalStatus,
    /// Whether this word changed it.
    pub changed: bool,
    /// Who said yes so far, where more than one must.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<String>,
}

/// The channel of whoever follows the link of a card that was sent to their own place.
pub const LINK: &str = "link";

/// What the signature of a card's link is made over: approval, person, channel, hash of the arguments, end in Unix
/// milliseconds.
#[must_use]
pub fn link_text(approval: &str, by: &str, channel: &str, arguments_hash: &str, until: i64) -> String {
    serde_json::json!([approval, by, channel, arguments_hash, until]).to_string()
}
