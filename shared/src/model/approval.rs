//! Approvals of a tool call. *Pure.* Source: `docs/design/sessions.md` §8; seed 002.

mod ask;
mod decision_word;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ulid::Ulid;

use super::dispatch::{DeliveryContext, DispatchCause};
use super::session::SessionRef;
use super::time::UnixMillis;
pub use ask::{ApprovalAsk, DEFAULT_EXPIRES_MS, DeciderScope, MAX_EXPIRES_MS};
pub use decision_word::read_decision_word;

/// The state of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Waiting for a decision.
    Pending,
    /// Approved by its approvers.
    Approved,
    /// Denied by an approver.
    Denied,
    /// Not decided in time.
    Expired,
    /// Withdrawn: the turn no longer waits for it.
    Canceled,
    /// Replaced by a new request, because the arguments changed.
    Superseded,
    /// Used: the approved call has run.
    Consumed,
}

impl ApprovalStatus {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Canceled => "canceled",
            Self::Superseded => "superseded",
            Self::Consumed => "consumed",
        }
    }
}

/// The request of an approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Id of the approval.
    pub id: String,
    /// Id of the tool call.
    pub call: String,
    /// Name of the tool.
    pub tool: String,
    /// Arguments of the call.
    pub arguments: Value,
    /// SHA-256 of the canonical arguments, in hex.
    pub arguments_hash: String,
    /// Name of the policy that asks.
    pub policy: String,
    /// Description of the parties that may decide, for people.
    pub approvers: Vec<String>,
    /// Time at which the approval expires.
    pub expires_at: UnixMillis,
    /// The turn that is suspended on the approval; absent = no turn waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_in: Option<Box<AskedIn>>,
}

/// A party on a channel: the sender of a message, or an approver. A person may have many of them (`identities.yaml`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalParty {
    /// Name of the channel; `cli` and `operator` for callers that act on the installation itself.
    pub channel: String,
    /// Id of the party on the channel.
    pub id: String,
    /// The proof of the party's identity.
    #[serde(default, skip_serializing_if = "DecisionProof::is_vouched")]
    pub proof: DecisionProof,
    /// Id of the person proven by the origin of the message. With [`DecisionProof::Channel`] the party is no other person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
}

/// The proof of a party's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionProof {
    /// The caller of the service vouches for the party. Only the installation's bots and tools may do so.
    #[default]
    Vouched,
    /// The origin of the message: a channel that proves its senders but has no rights in the installation.
    Channel,
    /// Only the party's own claim.
    Nobody,
}

impl DecisionProof {
    /// Returns whether the caller vouches for the party.
    #[must_use]
    pub const fn is_vouched(&self) -> bool {
        matches!(self, Self::Vouched)
    }
}

impl std::fmt::Display for ApprovalParty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.channel, self.id)
    }
}

/// The turn that is suspended on an approval, and the way it asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskedIn {
    /// Session of the turn.
    pub session: SessionRef,
    /// Id of the turn.
    pub turn: Ulid,
    /// Approvers that may decide.
    pub scope: DeciderScope,
    /// Sender of the message that the turn answers; absent if there were several senders or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<ApprovalParty>,
    /// Reason for the approval, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time at which the owner is notified as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_at: Option<UnixMillis>,
    /// Conversation of the turn's reply, to which the card is sent.
    pub place: DeliveryContext,
    /// Event that led to the turn.
    pub causation: DispatchCause,
    /// For an agent that runs the call itself and asks through its turn's gate: SHA-256 in hex of the canonical form
    /// of the arguments as the agent wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
}

/// The interactive part of an approval's reply (`Reply.interactive`, `kind` = `approval`). Only Nexus's approval code
/// creates it, never an agent. The client that shows the card renders it as buttons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalCard {
    /// Kind of the interactive part: always [`CARD`].
    pub kind: String,
    /// Id of the approval.
    pub approval: String,
    /// Reply code as people write it. It appears on the card alone and is never given to an agent.
    pub code: String,
    /// SHA-256 in hex of the arguments that the card shows.
    pub arguments_hash: String,
    /// Link by which a person decides, if the card has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

impl ApprovalCard {
    /// Parses `interactive`. Returns `None` if it is not a card.
    #[must_use]
    pub fn from_interactive(interactive: Option<&Value>) -> Option<Self> {
        let card: Self = serde_json::from_value(interactive?.clone()).ok()?;
        (card.kind == CARD && !card.code.is_empty()).then_some(card)
    }

    /// Returns `text` without the code and the link, for hooks, searches and agents.
    #[must_use]
    pub fn redact_text(&self, text: &str) -> String {
        let text = text.replace(&self.code, VEILED_CODE);
        match self.link.as_deref().filter(|link| !link.is_empty()) {
            Some(link) => text.replace(link, "(link)"),
            None => text,
        }
    }
}

/// Returns the interactive part of the change of a card of `approval` into its decision. Only Nexus's approval code makes
/// such a change.
#[must_use]
pub fn decision_interactive(approval: &str) -> Value {
    json!({"kind": DECISION, "approval": approval})
}

/// Returns whether `interactive` is that of a decision ([`decision_interactive`]).
#[must_use]
pub fn is_decision(interactive: Option<&Value>) -> bool {
    interactive.is_some_and(|interactive| interactive["kind"] == DECISION)
}

/// The kind of the interactive part of a decision.
const DECISION: &str = "approval_decision";

/// The value of [`ApprovalCard::kind`].
pub const CARD: &str = "approval";
/// Placeholder for a code in text that agents may read.
pub const VEILED_CODE: &str = "····-····";

/// The decision of a person about an approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// Id of the approval.
    pub id: String,
    /// New state of the approval.
    pub status: ApprovalStatus,
    /// Party that made the decision; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Arguments as the approver edited them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// Comment of the approver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// A value of KV `approvals`: the request and its state. It is decided once, by compare-and-set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfirmationTerms {
    /// The request to the approvers.
    pub request: ApprovalRequest,
    /// State of the approval.
    pub status: ApprovalStatus,
    /// Name of the requester: a persona, or a runtime on its behalf.
    pub requested_by: String,
    /// Time of the request.
    pub requested_at: UnixMillis,
    /// Time of the decision or expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<UnixMillis>,
    /// Party that made the decision; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Comment of the approver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Intermediate steps between request and decision.
    #[serde(default, skip_serializing_if = "ApprovalTrail::is_empty")]
    pub trail: ApprovalTrail,
}

impl ConfirmationTerms {
    /// Returns whether a turn of `session` asked.
    #[must_use]
    pub fn is_of(&self, session: &SessionRef) -> bool {
        let asked = self.request.asked_in.as_deref();
        asked.is_some_and(|asked| asked.session == *session)
    }

    /// Returns the hash of the arguments in force: the approver's, or the requested ones.
    #[must_use]
    pub fn standing_hash(&self) -> &str {
        let edited = self.trail.edited.as_ref().map(|edited| edited.hash.as_str());
        edited.unwrap_or(&self.request.arguments_hash)
    }
}

/// The steps of an approval between its request and its end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalTrail {
    /// Reply code of 8 random letters. It appears on the card alone and is never given to an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Approvals so far, if more than one is needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<ApprovalVote>,
    /// Arguments as an approver edited them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited: Option<EditedArguments>,
    /// JSON Schema of the tool's arguments at the time of the request, which edited arguments must match; absent if
    /// it is unknown or too large to be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Box<Value>>,
    /// Way the decision arrived: `cli`, `http`, `link`, `chat`, ….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Time the owner was notified as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<UnixMillis>,
    /// Cards that show the approval, written before they are sent: the decision changes exactly these, whatever the
    /// settings are by then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<ShownCard>,
    /// Whether the session's ledger has recorded the decision. The value may be deleted only after that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
    /// Time the approved call started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_at: Option<UnixMillis>,
    /// Attempt of the turn to which the approval was given, for an agent that runs the call itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// The `AUDIT` record of the last change, written with the value, so that any process that reads the value can
    /// publish it.
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

impl ApprovalTrail {
    /// Returns whether there has been no step yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reason for which a card is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardReason {
    /// The question was asked.
    Asked,
    /// The question was not answered for a long time.
    Escalated,
}

/// A card that shows an approval to humans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownCard {
    /// Id of its delivery.
    pub id: Ulid,
    /// Reason for which it is sent.
    pub reason: CardReason,
    /// Destination of the card.
    pub place: DeliveryContext,
    /// Ids of the persons whose own destination this is; none for the conversation that waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persons: Vec<String>,
}

/// One approval of several that are needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalVote {
    /// Id of the person, or `{channel}:{id}` of an unknown party.
    pub by: String,
    /// Time of the vote.
    pub at: UnixMillis,
    /// SHA-256 in hex of the arguments that the approver saw.
    pub arguments_hash: String,
    /// For [`DeciderScope::All`]: the indices, from 0, of the scopes for which the vote counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts_for: Vec<usize>,
}

/// Arguments as an approver edited them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EditedArguments {
    /// Arguments as the approver wrote them.
    pub arguments: Value,
    /// SHA-256 of their canonical form, in hex.
    pub hash: String,
}

/// Wakes the owner of a session because one of its approvals was requested or decided: a message on the session's
/// dispatch subject, followed by a claim. It contains only the approval's id; the reader looks it up in KV
/// `approvals`. Its message id is made of the approval's id and the kind of change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionDecision {
    /// Session that is woken.
    pub target: SessionRef,
    /// Id of the approval.
    pub approval: String,
    /// Time of the request or decision.
    pub at: UnixMillis,
}

/// The purpose of an approval's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalTimerPurpose {
    /// The approval expires.
    Expire,
    /// The owner is notified as well.
    Escalate,
}

/// The payload of a message on `nexus.schedule.approval.*`, and of the message it fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalTimer {
    /// Id of the approval.
    pub approval: String,
    /// Purpose of the timer.
    pub purpose: ApprovalTimerPurpose,
}

/// One entry of an approval's history, as stored in `AUDIT`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRecord {
    /// Id of the approval.
    pub approval: String,
    /// Kind of change: `asked`, `voted`, `refused`, `escalated`, or the new state.
    pub what: String,
    /// Number of the change, from 1; 0 = the entry records no change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n: u64,
    /// Time of the change.
    pub at: UnixMillis,
    /// Party that made the change; absent if a timer or the turn did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Way the party's decision arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Comment of the party, or the reason for refusing its decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// SHA-256 in hex of the requested arguments.
    pub before_hash: String,
    /// SHA-256 in hex of the arguments now in force.
    pub after_hash: String,
    /// Session of the turn; absent if no turn waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// Name of the tool.
    pub tool: String,
}
