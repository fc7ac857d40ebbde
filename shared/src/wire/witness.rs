//! How far a stream had come when somebody looked last. *Pure.* Source: `trust.md` §2.

use serde::{Deserialize, Serialize};

use crate::model::position::Position;
use crate::model::time::UnixMillis;

use super::envelope::Wire;

/// A stream's witness (KV `positions`, key = the stream's name).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Witnessed {
    /// Its last message.
    pub position: Position,
    /// The stream was put back to an older state: what was done up to this time it may not know, Unix milliseconds.
    /// 0 = that never happened.
    #[serde(default)]
    pub doubt_until_ms: i64,
    /// Nothing waits any more that was in doubt up to this time, Unix milliseconds; what comes again later still is.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub settled_until_ms: i64,
}

/// What waited in `DELIVERIES` or `DISPATCHES` when somebody looked last (KV `positions`, key = the stream's name).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// A while before the oldest message that waited was stored, and where none waited before that was seen; Unix
    /// milliseconds by the server's clock. Whatever is older has left the queue, or comes from a backup, which has it.
    pub since: UnixMillis,
    /// How the stream was found when nothing of it was lost; none = nobody has looked through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<SeenStream>,
}

/// A stream of which everything was there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenStream {
    /// Its last message.
    pub position: Position,
    /// When it was made, as the server writes it.
    pub created: String,
    /// When that was seen, by the server's clock.
    pub at: UnixMillis,
}

impl Wire for Waiting {
    const SCHEMA: &'static str = "waiting";
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl Witnessed {
    /// Until when work may have been done that the stream does not know of.
    #[must_use]
    pub fn doubt_until(&self) -> Option<UnixMillis> {
        (self.doubt_until_ms > 0).then_some(UnixMillis(self.doubt_until_ms))
    }

    /// Until when work was done that the stream may not know of, where such work may still wait.
    #[must_use]
    pub fn unsettled_until(&self) -> Option<UnixMillis> {
        self.doubt_until().filter(|until| until.0 > self.settled_until_ms)
    }
}

impl Wire for Witnessed {
    const SCHEMA: &'static str = "witnessed";
}
