//! Approvals: a human's word on a tool call. *Pure.* Source: `sessions.md` "Approvals"; `002_39404514fbd37e5d.txt`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::dispatch::{Causation, DeliveryContext};
use super::session::SessionRef;
use super::time::UnixMillis;

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

/// Who may decide an approval; checked at every ingress. The agent that asks never may.
///
/// In configuration: `initiator`, `owner`, `{kind: named, names: [ann]}` or `{kind: quorum, n: 2, of: [ann, bob]}`.
/// Names are those of persons in `identities.yaml`, or sender ids `{channel}:{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", from = "ScopeForm")]
pub enum Scope {
    /// Whoever wrote the message that the turn answers.
    Initiator,
    /// The owner of the installation.
    #[default]
    Owner,
    /// Any one of these.
    Named {
        /// They.
        names: Vec<String>,
    },
    /// `n` different ones of these.
    Quorum {
        /// How many must say yes; one no decides at once.
        n: u32,
        /// They.
        of: Vec<String>,
    },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ScopeForm {
    Word(ScopeWord),
    Full(ScopeFull),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScopeWord {
    Initiator,
    Owner,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
enum ScopeFull {
    Initiator,
    Owner,
    Named { names: Vec<String> },
    Quorum { n: u32, of: Vec<String> },
}

impl From<ScopeForm> for Scope {
    fn from(form: ScopeForm) -> Self {
        match form {
            ScopeForm::Word(ScopeWord::Initiator) | ScopeForm::Full(ScopeFull::Initiator) => Self::Initiator,
            ScopeForm::Word(ScopeWord::Owner) | ScopeForm::Full(ScopeFull::Owner) => Self::Owner,
            ScopeForm::Full(ScopeFull::Named { names }) => Self::Named { names },
            ScopeForm::Full(ScopeFull::Quorum { n, of }) => Self::Quorum { n, of },
        }
    }
}

impl Scope {
    /// What is wrong with it as configuration.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Initiator | Self::Owner => None,
            Self::Named { names } if names.is_empty() => Some("scope: names at least one".to_owned()),
            Self::Named { names: _ } => None,
            Self::Quorum { n, of } => {
                let mut persons: Vec<&str> = of.iter().map(String::as_str).collect();
                persons.sort_unstable();
                persons.dedup();
                let enough = *n >= 1 && usize::try_from(*n).is_ok_and(|n| n <= persons.len());
                (!enough).then(|| format!("scope: n between 1 and {}, the number of persons", persons.len()))
            }
        }
    }
}

/// How a policy asks for a human's word: the parameters of the builtin `approval_gate`, and of a tool that is flagged
/// `requires_confirmation`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ask {
    /// The rule that asks: its name stands in records and on the card.
    pub policy: String,
    /// Who may decide.
    pub scope: Scope,
    /// How long they have, milliseconds; absent = [`DEFAULT_EXPIRES_MS`], at most [`MAX_EXPIRES_MS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Fraction of that time, above 0 and below 1, after which the owner is told as well; absent = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate_at: Option<f64>,
    /// Why, for the human.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How long approvers have where nobody says otherwise, milliseconds.
pub const DEFAULT_EXPIRES_MS: u64 = 15 * 60_000;
/// How long they may have at most, milliseconds.
pub const MAX_EXPIRES_MS: u64 = 7 * 24 * 3_600_000;

impl Ask {
    /// What is wrong with it as configuration, each `key: what is expected`.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.scope.fault().into_iter().collect();
        if self.expires_ms.is_some_and(|ms| !(1..=MAX_EXPIRES_MS).contains(&ms)) {
            faults.push(format!("expires_ms: between 1 and {MAX_EXPIRES_MS} (7 days)"));
        }
        if self.escalate_at.is_some_and(|part| !(part > 0.0 && part < 1.0)) {
            faults.push("escalate_at: above 0 and below 1".to_owned());
        }
        faults
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
    /// What happened to it on the way.
    #[serde(default, skip_serializing_if = "Trail::is_empty")]
    pub trail: Trail,
}

impl Confirmation {
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
    /// Who said yes so far, where one is not enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<Vote>,
    /// The arguments as an approver edited them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited: Option<Edited>,
    /// How the word came that decided it: `cli`, `http`, `link`, `chat`, ….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// When the owner was told as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<UnixMillis>,
    /// When the approved call was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_at: Option<UnixMillis>,
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
}

/// Arguments as an approver edited them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edited {
    /// They.
    pub arguments: Value,
    /// SHA-256 of them, canonical, in hex.
    pub hash: String,
}

/// A decision, or the end of waiting for one, on its way to the session whose turn is suspended: a message on the
/// session's dispatch subject, followed by a claim. Its message id is the approval's id and the status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionDecision {
    /// Which session.
    pub target: SessionRef,
    /// What was decided.
    pub decision: ApprovalDecision,
    /// When.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ask_is_read_in_its_short_and_in_its_long_form() {
        let short: Ask = serde_json::from_value(json!({"scope": "initiator"})).expect("an ask");
        assert_eq!(short.scope, Scope::Initiator);
        let quorum = Scope::Quorum {
            n: 2,
            of: vec!["ann".to_owned(), "bob".to_owned()],
        };
        let long =
            json!({"policy": "pay", "scope": {"kind": "quorum", "n": 2, "of": ["ann", "bob"]}, "escalate_at": 0.5});
        let long: Ask = serde_json::from_value(long).expect("an ask");
        assert_eq!((&long.scope, long.faults()), (&quorum, Vec::new()));
        let written = serde_json::to_value(&quorum).expect("JSON");
        assert_eq!(serde_json::from_value::<Scope>(written).expect("a scope"), quorum);
        for wrong in [
            json!({"scope": "agent"}),
            json!({"scope": {"kind": "named", "n": 1, "names": []}}),
            json!({"x": 1}),
        ] {
            assert!(serde_json::from_value::<Ask>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_nobody_could_decide_is_a_fault() {
        let of = |n, names: &[&str]| Scope::Quorum {
            n,
            of: names.iter().map(|&name| name.to_owned()).collect(),
        };
        assert!(of(2, &["ann", "ann"]).fault().is_some());
        assert!(of(0, &["ann"]).fault().is_some());
        assert!(of(2, &["ann", "bob"]).fault().is_none());
        let wrong = Ask {
            scope: Scope::Named { names: Vec::new() },
            expires_ms: Some(MAX_EXPIRES_MS + 1),
            escalate_at: Some(1.0),
            ..Ask::default()
        };
        assert_eq!(wrong.faults().len(), 3);
    }
}
