//! Approvals: a human's word on a tool call. *Pure.* Source: `docs/design/sessions.md` §8; seed 002.

mod ask;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::dispatch::{Causation, DeliveryContext};
use super::session::SessionRef;
use super::time::UnixMillis;
pub use ask::{Ask, DEFAULT_EXPIRES_MS, MAX_EXPIRES_MS, Scope};

/// Where an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

impl ApprovalStatus {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::Consumed => "consumed",
        }
    }
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
    /// The turn that is suspended on it; none where no turn is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_in: Option<Box<AskedIn>>,
}

/// Somebody on a channel: who wrote a message, or who decides. Persons have many of them (`identities.yaml`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Party {
    /// The channel; `cli` and `operator` for those who act on the installation itself.
    pub channel: String,
    /// Their id there.
    pub id: String,
    /// Who says that they are who they are.
    #[serde(default, skip_serializing_if = "Proof::is_vouched")]
    pub proof: Proof,
    /// Id of the person whom the origin of their message proves them to be; the only one they are with [`Proof::Channel`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
}

/// Who says that somebody is who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// Whoever calls the service, which only bots and tools of ours may.
    #[default]
    Vouched,
    /// The origin of their message: a channel knows its senders, and nothing of the installation.
    Channel,
    /// They themselves.
    Nobody,
}

impl Proof {
    /// Whether the caller vouches for them.
    #[must_use]
    pub const fn is_vouched(&self) -> bool {
        matches!(self, Self::Vouched)
    }
}

impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.channel, self.id)
    }
}

/// The turn that is suspended on an approval, and how it asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskedIn {
    /// The session.
    pub session: SessionRef,
    /// The turn.
    pub turn: Ulid,
    /// Who may decide.
    pub scope: Scope,
    /// Who wrote what the turn answers; none where several did, or nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<Party>,
    /// Why it is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the owner is told as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_at: Option<UnixMillis>,
    /// Where the turn's answer goes: the conversation that the card goes to.
    pub place: DeliveryContext,
    /// The event that led to it.
    pub causation: Causation,
    /// Where the agent runs the call itself, and asks by the gate of its turn: SHA-256 of the arguments as it wrote them,
    /// canonical, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
}

/// What only the approvals' room puts on a reply (`Reply.interactive`, `kind` = `approval`), and no agent can: whoever
/// shows the card makes buttons of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Always `approval`.
    pub kind: String,
    /// The approval's id.
    pub approval: String,
    /// The reply code, as people write it: it stands on the card alone, and is told to no agent.
    pub code: String,
    /// Hash of the arguments that the card shows.
    pub arguments_hash: String,
    /// The link by which a person decides, where the card has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

impl Card {
    /// The card that `interactive` is; none where it is something else.
    #[must_use]
    pub fn of(interactive: Option<&Value>) -> Option<Self> {
        let card: Self = serde_json::from_value(interactive?.clone()).ok()?;
        (card.kind == CARD && !card.code.is_empty()).then_some(card)
    }

    /// `text` without the code and the link: as hooks, searches and agents may read it.
    #[must_use]
    pub fn veiled(&self, text: &str) -> String {
        let text = text.replace(&self.code, VEILED_CODE);
        match self.link.as_deref().filter(|link| !link.is_empty()) {
            Some(link) => text.replace(link, "(link)"),
            None => text,
        }
    }
}

/// [`Card::kind`].
pub const CARD: &str = "approval";
/// What stands in the place of a code where agents may read.
pub const VEILED_CODE: &str = "····-····";

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
    /// What happened to it on the way.
    #[serde(default, skip_serializing_if = "Trail::is_empty")]
    pub trail: Trail,
}

impl Confirmation {
    /// Whether a turn of `session` asks.
    #[must_use]
    pub fn is_of(&self, session: &SessionRef) -> bool {
        let asked = self.request.asked_in.as_deref();
        asked.is_some_and(|asked| asked.session == *session)
    }

    /// Hash of the arguments that stand: the approver's, or those that were asked for.
    #[must_use]
    pub fn standing_hash(&self) -> &str {
        let edited = self.trail.edited.as_ref().map(|edited| edited.hash.as_str());
        edited.unwrap_or(&self.request.arguments_hash)
    }
}

/// What happened to an approval between question and end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trail {
    /// The reply code, 8 random letters: it stands on the card alone, and is told to no agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Who said yes so far, where one is not enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<Vote>,
    /// The arguments as an approver edited them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited: Option<Edited>,
    /// JSON Schema of the tool's arguments when it was asked, which edited ones must fit; none where nobody knows it, or it
    /// is too large to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Box<Value>>,
    /// How the word came that decided it: `cli`, `http`, `link`, `chat`, ….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// When the owner was told as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<UnixMillis>,
    /// Whether the session's ledger has taken the decision; only then may the value vanish.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
    /// When the approved call was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_at: Option<UnixMillis>,
    /// The attempt to run it for which an agent that runs it itself was given it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// What led here, as `AUDIT` is to say it: written with the value, so that whoever finds the value can see to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<ApprovalRecord>>,
    /// Sequence in `AUDIT` of the record of the change before; 0 = there was none.
    #[serde(skip_serializing_if = "is_zero")]
    pub audited: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Trail {
    /// Whether nothing happened yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One yes of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The person's id, or `{channel}:{id}` of somebody unknown.
    pub by: String,
    /// When.
    pub at: UnixMillis,
    /// Hash of the arguments that they saw.
    pub arguments_hash: String,
    /// Where all of several scopes must be satisfied, those for which it counts: their numbers, from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts_for: Vec<usize>,
}

/// Arguments as an approver edited them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edited {
    /// They.
    pub arguments: Value,
    /// SHA-256 of them, canonical, in hex.
    pub hash: String,
}

/// Wakes the owner of a session because one of its approvals was asked or decided: a message on the session's dispatch
/// subject, followed by a claim. It says which approval and nothing about it: whoever reads it reads KV `approvals`. Its
/// message id is the approval's id and what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionDecision {
    /// The session.
    pub target: SessionRef,
    /// The approval's id.
    pub approval: String,
    /// When it was asked or decided.
    pub at: UnixMillis,
}

/// What a timer of an approval is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalTimerPurpose {
    /// It lapses.
    Expire,
    /// The owner is told as well.
    Escalate,
}

/// The payload of a message on `nexus.schedule.approval.*`, and of what it fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalTimer {
    /// The approval.
    pub approval: String,
    /// What for.
    pub purpose: ApprovalTimerPurpose,
}

/// One line of an approval's history, as `AUDIT` keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRecord {
    /// The approval.
    pub approval: String,
    /// What happened: `asked`, `voted`, `refused`, `escalated`, or the new status.
    pub what: String,
    /// The how-manyth change of the approval it is, from 1; 0 = it changed nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n: u64,
    /// When.
    pub at: UnixMillis,
    /// Who; none where time or the turn did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How their word came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// What they wrote, or why they were refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Hash of the arguments that were asked for.
    pub before_hash: String,
    /// Hash of the arguments that stand now.
    pub after_hash: String,
    /// The session; none where no turn waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// The tool.
    pub tool: String,
}
