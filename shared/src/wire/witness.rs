//! Witnesses: the last known position of a stream. *Pure.* Source: `docs/design/trust.md` §2.

use serde::{Deserialize, Serialize};

use crate::model::position::StreamPosition;
use crate::model::time::UnixMillis;

use super::envelope::WireMessage;

/// A stream's witness (KV `positions`, key = the stream's name).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WitnessedPosition {
    /// Position of the stream's last message.
    pub position: StreamPosition,
    /// End of the doubt, in Unix milliseconds: the stream was restored to an older state and may not have work that
    /// was done up to this time. 0 = the stream was never restored.
    #[serde(default)]
    pub doubt_until_ms: i64,
    /// Time up to which no doubtful work waits any more, in Unix milliseconds; work that arrives again later is still
    /// in doubt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub settled_until_ms: i64,
}

/// The oldest waiting work in `DELIVERIES` or `DISPATCHES` (KV `positions`, key = the stream's name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingMark {
    /// A time shortly before the oldest waiting message was stored, or, if none waited, before that was observed; in
    /// Unix milliseconds by the server's clock. Older messages have left the queue, or come from a backup, which has
    /// them.
    pub since: UnixMillis,
}

impl WireMessage for WaitingMark {
    const SCHEMA: &'static str = "waiting";
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl WitnessedPosition {
    /// Returns the time up to which work may have been done that the stream does not have.
    #[must_use]
    pub fn doubt_until(&self) -> Option<UnixMillis> {
        (self.doubt_until_ms > 0).then_some(UnixMillis(self.doubt_until_ms))
    }

    /// Returns the time up to which work was done that the stream may not have, if such work may still wait.
    #[must_use]
    pub fn unsettled_until(&self) -> Option<UnixMillis> {
        self.doubt_until().filter(|until| until.0 > self.settled_until_ms)
    }
}

impl WireMessage for WitnessedPosition {
    const SCHEMA: &'static str = "witnessed";
}
