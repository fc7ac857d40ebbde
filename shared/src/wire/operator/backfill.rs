//! Reading the histories of an account on a platform (`nexus.svc.backfill.*`): requests, the job in KV `backfills`, and the
//! record of an order. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use crate::model::time::UnixMillis;
use crate::wire::envelope::WireMessage;
use crate::wire::subject::token;

/// Maximum number of conversations that one job names.
pub const MAX_NAMED: usize = 1_000;
/// Maximum length of the id of a conversation, in bytes.
pub const MAX_CONVERSATION_BYTES: usize = 128;
/// Maximum number of conversations that a job lists with the reason why they cannot be read; further ones are counted.
pub const MAX_SKIPPED: usize = 100;

/// Request of `nexus.svc.backfill.start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartBackfill {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// Time of the first messages that are read.
    pub since: UnixMillis,
    /// Time of the last messages that are read; absent = the time of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// The platform's ids of the conversations that are read; empty = all that the account finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<String>,
    /// User that asks, for the record.
    pub by: String,
}

/// Request of `nexus.svc.backfill.list`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListBackfills {}

/// Request of `nexus.svc.backfill.show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowBackfill {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
}

/// Request of `nexus.svc.backfill.stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopBackfill {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// User that asks, for the record.
    pub by: String,
}

/// Answer of `nexus.svc.backfill.list`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BackfillList {
    /// The last job of each account, by channel and account.
    pub jobs: Vec<BackfillJob>,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackfillState {
    /// It is read, or waits for a replica that reads it.
    Running,
    /// Everything that the account may read is stored.
    Done,
    /// An operator stopped it.
    Stopped,
    /// It cannot be read: `reason` says why.
    Failed,
}

impl BackfillState {
    /// Returns the wire name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// How far a conversation was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationPlace {
    /// The platform's id of the conversation.
    pub conversation: String,
    /// Position behind the last message that is stored, in the form of the platform; null = the conversation is done, and
    /// so are those before it in the order of their ids.
    pub position: Value,
}

/// A conversation that could not be read to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedConversation {
    /// The platform's id of the conversation, or of the place in which conversations were looked for.
    pub conversation: String,
    /// Reason, in the platform's words.
    pub reason: String,
}

/// The last job of an account (KV `backfills`, key [`backfill_key`]), and the answer of `start`, `show` and `stop`.
///
/// Its position is written once everything before it is in `EVENTS`. One that is older than it should be, because a
/// process was killed or the bucket restored, only has messages read again whose events have the same ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackfillJob {
    /// Id of the job.
    pub id: Ulid,
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// Time of the first messages that are read.
    pub since: UnixMillis,
    /// Time of the last messages that are read.
    pub until: UnixMillis,
    /// The platform's ids of the conversations that are read; empty = all that the account finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<String>,
    /// User that asked for it.
    pub by: String,
    /// State.
    pub state: BackfillState,
    /// Reason of the state, or what a running job waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the order.
    pub started_at: UnixMillis,
    /// Time of the last change.
    pub changed_at: UnixMillis,
    /// Replica that reads it, or read it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_by: Option<String>,
    /// Number of conversations; absent while they are looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<u64>,
    /// Number of conversations that were read, or cannot be read.
    pub finished: u64,
    /// Number of messages that were stored as events, or were stored already.
    pub events: u64,
    /// Number of messages that are no events: the account's own, and those that cannot be read.
    pub passed_over: u64,
    /// Position; absent = nothing was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ConversationPlace>,
    /// Conversations that could not be read to their ends, at most [`MAX_SKIPPED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedConversation>,
    /// Number of all of them.
    #[serde(default)]
    pub skipped_count: u64,
}

impl BackfillJob {
    /// Returns whether it is to be read.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        matches!(self.state, BackfillState::Running)
    }
}

/// What an operator had done about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackfillChange {
    /// It was started.
    Started,
    /// It was stopped.
    Stopped,
}

/// A record in `AUDIT` of an order about a job. It is written before the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillRecord {
    /// Id of the operation.
    pub operation: Ulid,
    /// The change.
    pub what: BackfillChange,
    /// Id of the job.
    pub job: Ulid,
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// Time of the first messages that are read.
    pub since: UnixMillis,
    /// Time of the last messages that are read.
    pub until: UnixMillis,
    /// The platform's ids of the conversations that are read; empty = all that the account finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<String>,
    /// User that asked, as the request says.
    pub by: String,
    /// Time of the request.
    pub at: UnixMillis,
}

/// Returns the key of the job of `account` on `channel`.
///
/// ```
/// use shared::wire::operator::backfill::backfill_key;
///
/// assert_eq!(backfill_key("slack", "my.app"), "slack.my=2Eapp");
/// ```
#[must_use]
pub fn backfill_key(channel: &str, account: &str) -> String {
    format!("{}.{}", token(channel), token(account))
}

impl WireMessage for BackfillJob {
    const SCHEMA: &'static str = "backfill";
}

impl WireMessage for BackfillRecord {
    const SCHEMA: &'static str = "backfill_record";
}
