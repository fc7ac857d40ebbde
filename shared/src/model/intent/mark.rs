//! That an intent waits for an event: what is looked for, and from where on. *Pure.* Source: `schedule.md` "HookIntent"
//! (Schedule).

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::EventMatch;
use crate::model::position::Position;
use crate::model::time::UnixMillis;

/// A value of KV `intents` under `c.{agent}.{id}`, there while the intent waits: events are read only while there are
/// such.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentMark {
    /// The intent.
    pub intent: Ulid,
    /// Its agent.
    pub agent: String,
    /// What an event has to be like.
    pub matches: EventMatch,
    /// Events after this sequence count.
    pub from: u64,
    /// The message of `EVENTS` at that sequence: where it is not there any more, events that were stored later than it
    /// was count. Absent if the stream was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// When it was made.
    pub at: UnixMillis,
}
