//! Check of whether a position still counts the stream that it was taken from.
//!
//! A stream may be restored to an older state, lose its end in a power cut, or be recreated: then it gives the same
//! sequences to other messages. A position therefore names a message, and is compared with the leader before anything
//! is decided by it. If it is void, the records decide which work is done, and not the position.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::model::position::{FoundPosition, PositionStanding, StreamPosition, judge_position};

use super::connect::Bus;
use super::error::{EnsureTopologyError, ReadStreamError};

/// Key of a stream's metadata for its incarnation: a random value, written when the stream is created.
pub(super) const INCARNATION: &str = "nexus.incarnation";

/// Key of a restored stream's metadata for its former incarnations ([`crate::model::position::StreamLineage`]).
pub(super) const LINEAGE: &str = "nexus.lineage";

/// Returns the positions that are void at the moment, by the name of their user, each with the reason.
fn lock_degraded() -> MutexGuard<'static, BTreeMap<String, String>> {
    static DEGRADED: OnceLock<Mutex<BTreeMap<String, String>>> = OnceLock::new();
    let all = DEGRADED.get_or_init(Mutex::default);
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the positions of this process that are void, by the name of their user, with one sentence each. Empty if
/// all are valid.
#[must_use]
pub fn void_positions() -> BTreeMap<String, String> {
    lock_degraded().clone()
}

/// Reports that `position` in `stream`, which `what` uses, is void; until [`told_sound`].
pub fn told_void(what: &str, stream: &str, position: &StreamPosition, why: &str) {
    let sentence = format!("position {} in {stream} is void: {why}", position.sequence);
    tracing::error!(
        what,
        stream,
        sequence = position.sequence,
        reason = why,
        "position is void: the stream was restored, truncated or recreated; using records to find completed work"
    );

    metrics::counter!("nexus_positions_void_total", "stream" => stream.to_owned()).increment(1);
    let mut degraded = lock_degraded();
    degraded.insert(what.to_owned(), sentence);
    metrics::gauge!("nexus_positions_degraded").set(degraded.len() as f64);
}

/// Reports that `what` decides by the records instead of a position, for the reason in `sentence`, until
/// [`told_sound`]. Logged once.
pub fn told_degraded(what: &str, sentence: String) {
    let mut degraded = lock_degraded();
    if !degraded.contains_key(what) {
        tracing::warn!(what, reason = sentence, "using records to find completed work");
    }
    degraded.insert(what.to_owned(), sentence);
    metrics::gauge!("nexus_positions_degraded").set(degraded.len() as f64);
}

/// Reports that the position of `what` is valid again.
pub fn told_sound(what: &str) {
    let mut degraded = lock_degraded();
    if degraded.remove(what).is_some() {
        tracing::info!(what, "position is valid again");
        metrics::gauge!("nexus_positions_degraded").set(degraded.len() as f64);
    }
}

impl Bus {
    /// Checks with the leader whether `position` is valid in `stream`.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn check_position(
        &self,
        stream: &str,
        position: &StreamPosition,
    ) -> Result<PositionStanding, ReadStreamError> {
        let info = self.stream_info(stream).await?;
        let stored_at_ns = match position.sequence {
            0 => None,
            sequence if sequence < info.state.first || sequence > info.state.last => None,
            sequence => self
                .at_sequence(stream, sequence)
                .await?
                .map(|found| found.stored_at_ns),
        };

        let found = FoundPosition {
            incarnation: &info.incarnation,
            lineage: &info.lineage,
            first: info.state.first,
            stored_at_ns,
        };

        Ok(judge_position(position, &found))
    }

    /// Returns the position of the message at `sequence` of `stream`, or `None` if there is no such message.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn position_at(&self, stream: &str, sequence: u64) -> Result<Option<StreamPosition>, ReadStreamError> {
        let incarnation = self.stream_info(stream).await?.incarnation;
        let found = self.at_sequence(stream, sequence).await?;
        Ok(found.map(|found| StreamPosition {
            incarnation,
            sequence,
            stored_at_ns: found.stored_at_ns,
        }))
    }

    /// Returns the position of the last message of `stream`, or the position before the first message if it is empty.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn end_of(&self, stream: &str) -> Result<StreamPosition, ReadStreamError> {
        let last = self.last_on_subject(stream, ">").await?;
        let incarnation = self.stream_info(stream).await?.incarnation;
        Ok(last.map_or_else(StreamPosition::default, |last| StreamPosition {
            incarnation,
            sequence: last.sequence,
            stored_at_ns: last.stored_at_ns,
        }))
    }

    /// Returns the position of the last message of `stream` stored at or before `stored_at_ns` (nanoseconds since
    /// 1970), from which the user of a void position can continue. Sends the leader one request per bit of the number
    /// of messages.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn stored_by(&self, stream: &str, stored_at_ns: i64) -> Result<StreamPosition, ReadStreamError> {
        let info = self.stream_info(stream).await?;
        let mut found = StreamPosition::default();

        // Invariant: every message below `from` was stored by then, every message from `to` on later.
        let (mut from, mut to) = (info.state.first, info.state.last.saturating_add(1));
        while from < to {
            let middle = from + (to - from) / 2;
            match self.next_on_subject(stream, ">", middle).await? {
                Some(next) if next.sequence < to && next.stored_at_ns <= stored_at_ns => {
                    from = next.sequence + 1;
                    found = StreamPosition {
                        incarnation: info.incarnation.clone(),
                        sequence: next.sequence,
                        stored_at_ns: next.stored_at_ns,
                    };
                }
                Some(_) | None => to = middle,
            }
        }

        Ok(found)
    }

    /// Gives `stream` a new incarnation, which makes all positions taken before void.
    ///
    /// # Errors
    /// Returns [`EnsureTopologyError`] if the stream does not exist or the server rejects the change.
    pub async fn renew_incarnation(&self, stream: &str) -> Result<(), EnsureTopologyError> {
        let failed = |detail: String| EnsureTopologyError::Create {
            what: "incarnation of stream",
            name: stream.to_owned(),
            detail,
        };
        let found = self.jetstream.get_stream(stream).await;
        let mut config = found
            .map_err(|error| failed(error.to_string()))?
            .cached_info()
            .config
            .clone();

        config
            .metadata
            .insert(INCARNATION.to_owned(), super::writer::random_name());
        config.metadata.remove(LINEAGE);
        let updated = self.jetstream.update_stream(&config).await;

        updated.map(|_| ()).map_err(|error| failed(error.to_string()))
    }
}
