//! Requests to and responses of `nexus.svc.approval.*`, in JSON. *Pure.* Source: `docs/design/sessions.md` §8.
//!
//! A caller of `decide` vouches for the party that decides: the service checks whether that party may decide, not
//! whether the decision is really theirs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{ApprovalParty, ApprovalStatus, ConfirmationTerms};

/// `list`: returns approvals, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListApprovals {
    /// Return only approvals in this state; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ApprovalStatus>,
    /// Maximum number of approvals; 0 = 50.
    pub limit: usize,
}

/// The response to `list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalList {
    /// The approvals found, newest first.
    pub approvals: Vec<ConfirmationTerms>,
}

/// `get`: returns one approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetApproval {
    /// Id of the approval. The code on its card is for replies in a chat and is not accepted here.
    pub id: String,
}

/// `decide`: approves or denies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// Id of the approval. The code on its card is for replies in a chat and is not accepted here.
    pub id: String,
    /// Whether to approve; `false` denies.
    pub approve: bool,
    /// Party that makes the decision.
    pub by: ApprovalParty,
    /// Way the decision arrived: `cli`, `http`, `link`, `chat`, ….
    pub via: String,
    /// Arguments as the party edited them; absent = unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// SHA-256 in hex of the arguments that the party saw. If others are in force, nothing is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_hash: Option<String>,
    /// Comment of the party.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// The response to `decide`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalAnswer {
    /// Id of the approval.
    pub id: String,
    /// State of the approval after the request.
    pub status: ApprovalStatus,
    /// Whether this request changed the state.
    pub changed: bool,
    /// Parties that have approved so far, if more than one is needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<String>,
}

/// Returns the text that a card link's signature covers: approval, person, channel, hash of the arguments, and end in
/// Unix milliseconds.
#[must_use]
pub fn link_text(approval: &str, by: &str, channel: &str, arguments_hash: &str, until: i64) -> String {
    serde_json::json!([approval, by, channel, arguments_hash, until]).to_string()
}
