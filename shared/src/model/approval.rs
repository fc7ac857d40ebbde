//! Approvals: a human's word on a tool call. *Pure.* Source: `sessions.md` "Approvals"; `002_39404514fbd37e5d.txt`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::time::UnixMillis;

/// Where an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Asked.
    Pending,
    /// Yes.
    Approved,
    /// No.
    Rejected,
    /// Nobody answered in time.
    Expired,
    /// Withdrawn.
    Cancelled,
    /// The arguments changed: asked anew.
    Superseded,
    /// The approved call has run.
    Consumed,
}

/// What is asked of a human.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The approval's id.
    pub id: String,
    /// The tool call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: Value,
    /// SHA-256 of the canonical arguments, in hex.
    pub arguments_hash: String,
    /// The rule that asks.
    pub policy: String,
    /// Who may decide.
    pub approvers: Vec<String>,
    /// When it lapses.
    pub expires_at: UnixMillis,
}

/// What a human said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// The approval's id.
    pub id: String,
    /// The new status.
    pub status: ApprovalStatus,
    /// Who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Arguments as the approver edited them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// What they wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// A value of KV `approvals`: what is asked, and where it stands. Decided by compare-and-set, once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// What is asked.
    pub request: ApprovalRequest,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// Who asks: a persona, or a runtime on its behalf.
    pub requested_by: String,
    /// When.
    pub requested_at: UnixMillis,
    /// When it was decided or lapsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<UnixMillis>,
    /// Who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// What they wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}
