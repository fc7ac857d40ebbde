//! Reading messages as they come (`nexus.svc.events.tail`). *Pure.*
//!
//! A tail is a row of requests. Each names how far its reader is, so that no service keeps anything for a reader: one that
//! is slow or gone costs nothing, and any replica answers the next request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;
use crate::wire::topology::streams;

/// Streams that can be tailed. Work queues (`CLAIMS`, `DELIVERIES`) cannot: what is in them is in the others as well.
pub const TAILED_STREAMS: [&str; 6] = [
    streams::EVENTS,
    streams::INVOCATIONS,
    streams::DISPATCHES,
    streams::LEDGER,
    streams::RECEIPTS,
    streams::DLQ,
];
/// Streams that are tailed if the request names none.
pub const DEFAULT_STREAMS: [&str; 4] = [streams::EVENTS, streams::DISPATCHES, streams::LEDGER, streams::RECEIPTS];
/// Maximum number of messages in one page.
pub const MAX_TAILED: usize = 500;
/// Longest wait of one request for a message, in milliseconds.
pub const MAX_TAIL_WAIT_MS: u64 = 5_000;
/// Maximum length of a text that messages must contain, in bytes.
pub const MAX_TAIL_TEXT: usize = 1_024;
/// Maximum size of a payload that is returned, in bytes of JSON, unless everything is wanted whole.
pub const MAX_TAILED_PAYLOAD: usize = 256 * 1_024;

/// How far a reader is in one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailCursor {
    /// Sequence that is read next.
    pub next: u64,
    /// Last sequence of those that were there when the tail began, none of which is left out.
    pub whole_until: u64,
}

/// Request of `nexus.svc.events.tail`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TailMessages {
    /// Streams to read, by name; empty = [`DEFAULT_STREAMS`].
    pub streams: Vec<String>,
    /// Only messages that contain this text in their subject, id or description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only messages of this session; needs streams among `LEDGER` and `DISPATCHES`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// Only records of `INVOCATIONS` that have an outcome of this hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// Number of messages of each stream to begin with, where `cursors` does not have it.
    pub last: u64,
    /// Whether nothing is left out, however far the reader is behind.
    pub whole: bool,
    /// Maximum number of messages; 0 = [`MAX_TAILED`].
    pub limit: usize,
    /// Wait for a message, in milliseconds, at most [`MAX_TAIL_WAIT_MS`].
    pub wait_ms: u64,
    /// Cursors of the page before; empty = the tail begins.
    pub cursors: BTreeMap<String, TailCursor>,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TailedMessage {
    /// Stream of the message.
    pub stream: String,
    /// Sequence in the stream.
    pub sequence: u64,
    /// Subject under which it is stored.
    pub subject: String,
    /// Time at which it was stored.
    pub at: UnixMillis,
    /// Id of the thing that it is about; empty if it cannot be read.
    pub id: String,
    /// What it says, in words.
    pub text: String,
    /// The message as JSON; absent if it is larger than [`MAX_TAILED_PAYLOAD`] or cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// Size of a payload that is left out, in bytes of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out_bytes: Option<usize>,
}

/// Answer of `nexus.svc.events.tail`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TailPage {
    /// Messages in the order in which they were stored.
    pub messages: Vec<TailedMessage>,
    /// Cursors for the next request.
    pub cursors: BTreeMap<String, TailCursor>,
    /// Number of messages that were left out since the page before, because there are more than a reader can follow.
    #[serde(default)]
    pub dropped: u64,
}
