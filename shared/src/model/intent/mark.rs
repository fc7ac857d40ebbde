//! Marks of intents that wait for an event: the match, and the position from which events count. *Pure.* Source:
//! `docs/design/schedules.md` §3.3 (Schedule).

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::EventMatch;
use crate::model::position::StreamPosition;
use crate::model::time::UnixMillis;

/// A value of KV `intents` under `c.{agent}.{id}`, present while the intent waits. Events are read only while there
/// are marks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentMark {
    /// Id of the intent.
    pub intent: Ulid,
    /// Persona that requested it.
    pub agent: String,
    /// Conditions that an event must meet.
    pub matches: EventMatch,
    /// Sequence in `EVENTS` after which events count.
    pub from: u64,
    /// Message of `EVENTS` at that sequence. If it is not there any more, events that were stored later than it
    /// count. Absent if the stream was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<StreamPosition>,
    /// Time the mark was made.
    pub at: UnixMillis,
}
