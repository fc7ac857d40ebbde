//! Reading the records of what was decided and changed (`nexus.svc.audit.list`). *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::time::UnixMillis;

/// Number of records in a list if the request names none.
pub const LISTED_RECORDS: usize = 50;
/// Maximum number of records in one list.
pub const MAX_LISTED_RECORDS: usize = 500;
/// Maximum size of all records in one list, in bytes.
pub const MAX_LISTED_BYTES: usize = 2 << 20;

/// The topics of records: the token behind `nexus.audit.` in their subjects.
pub const AUDIT_TOPICS: [&str; 8] = [
    "approval", "backfill", "breaker", "dlq", "held", "intent", "owner", "pairing",
];

/// Request of `nexus.svc.audit.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListRecords {
    /// Only records of this topic, one of [`AUDIT_TOPICS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Only records about this thing: the id of an approval or an intent, the number of a dead letter, the id of a hook.
    /// Needs a topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Only records with a lower sequence; absent = from the newest on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Maximum number of records; 0 = [`LISTED_RECORDS`].
    pub limit: usize,
}

/// A record of `AUDIT`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedRecord {
    /// Sequence in `AUDIT`.
    pub sequence: u64,
    /// Time at which it was stored.
    pub at: UnixMillis,
    /// Subject, which names the topic and the thing.
    pub subject: String,
    /// Schema of the record, as `letter_record/1`; absent if the message names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The record; absent if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Value>,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// Answer of `nexus.svc.audit.list`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordList {
    /// Records, newest last.
    pub records: Vec<ListedRecord>,
    /// Sequence before which the next list goes on; absent if there are no older ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}
