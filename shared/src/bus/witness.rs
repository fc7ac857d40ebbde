//! Witnesses: the last position of a stream, stored apart from it, so that a restore to an older state is detected.
//!
//! A stream of done-markers (`LEDGER`, `RECEIPTS`) that was restored to an older state lacks the markers of work that
//! was done. Its witness names its last message every few seconds, in a bucket of its own. If that message is gone,
//! all work that was in progress before this was detected, and that the stream does not know, counts neither as done
//! nor as undone: it is held. The doubt stays for work that is redelivered later. It is reported as settled once no
//! message is waiting that it concerns.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{SharedClock, pause};
use crate::model::position::{PositionStanding, StreamPosition};
use crate::model::time::{UnixMillis, millis_of};
use crate::process::lifecycle::ShutdownSignal;
use crate::wire::held::{HeldKind, HeldUntil};
use crate::wire::topology::{RECEIPTS_KEPT, buckets, streams};
use crate::wire::witness::WitnessedPosition;

use super::connect::Bus;
use super::error::{CasError, ReadStreamError};
use super::kv::Kv;
use super::position::{told_degraded, told_sound, told_void};

/// Interval at which a witness is updated.
const EVERY: Duration = Duration::from_secs(2);
/// Allowance for messages stored after the last witness and for differences of servers' clocks, in milliseconds.
const MARGIN_MS: i64 = 5_000;
/// Number of times that an update is repeated because another replica wrote the witness.
const TRIES: u32 = 8;
/// Time after a loss before the doubt may be settled, in milliseconds: a recovering service may publish its work in
/// progress again.
const UNSETTLED_MS: i64 = 15_000;

/// Kind of work whose done-markers a witnessed stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkedStream {
    /// Dispatches, marked in `LEDGER`.
    Dispatches,
    /// Deliveries, marked in `RECEIPTS`.
    Deliveries,
}

impl MarkedStream {
    const fn stream_name(self) -> &'static str {
        match self {
            Self::Dispatches => streams::LEDGER,
            Self::Deliveries => streams::RECEIPTS,
        }
    }

    /// How long the stream keeps messages; zero for no limit.
    const fn max_age(self) -> Duration {
        match self {
            Self::Dispatches => Duration::ZERO,
            Self::Deliveries => RECEIPTS_KEPT,
        }
    }

    const fn held_kind(self) -> HeldKind {
        match self {
            Self::Dispatches => HeldKind::Dispatch,
            Self::Deliveries => HeldKind::Delivery,
        }
    }
}

/// The witness of one stream. Clones share the result of the last comparison.
#[derive(Debug, Clone)]
pub struct StreamWitness {
    bus: Bus,
    marked: MarkedStream,
    kv: Kv<WitnessedPosition>,
    /// Result of the last comparison: the connection it was made over, and the time until which work is in doubt.
    found: Arc<Mutex<Option<FoundStanding>>>,
}

#[derive(Debug, Clone, Copy)]
struct FoundStanding {
    connection: u64,
    doubt_until: Option<UnixMillis>,
}

/// A witness cannot be read or updated.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// The leader cannot be asked.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// Writing to the bucket failed.
    #[error(transparent)]
    Write(#[from] CasError),
}

impl StreamWitness {
    /// Builds the witness of the stream that marks `marked` as done.
    #[must_use]
    pub fn new(bus: &Bus, marked: MarkedStream) -> Self {
        Self {
            kv: bus.kv(buckets::POSITIONS),
            bus: bus.clone(),
            marked,
            found: Arc::default(),
        }
    }

    /// Returns the time until which work may have been done that the stream does not know of, or `None` if the stream
    /// is complete. Compared once per connection, and from then on whenever the witness is [kept](Self::run_witness).
    ///
    /// # Errors
    /// Returns [`WitnessError`]; the absence of a marker in the stream proves nothing then.
    pub async fn doubt_until(&self, now: UnixMillis) -> Result<Option<UnixMillis>, WitnessError> {
        let known = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) if known.connection == self.bus.connection_number() => Ok(known.doubt_until),
            Some(_) | None => self.check(now).await,
        }
    }

    /// Compares the stream with its witness and updates the witness. Returns the same as [`Self::doubt_until`].
    ///
    /// # Errors
    /// As [`Self::doubt_until`].
    pub async fn check(&self, now: UnixMillis) -> Result<Option<UnixMillis>, WitnessError> {
        // Read before the comparison: if the connection ends meanwhile, the next caller sees another number and
        // compares again.
        let connection = self.bus.connection_number();
        let witnessed = self.brought_up(now).await?;
        self.report_standing(&witnessed);

        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let known = found.and_then(|found| found.doubt_until);

        // A doubt stays for this process, even if the witness itself is lost.
        let doubt_until = known.max(witnessed.doubt_until());
        *found = Some(FoundStanding {
            connection,
            doubt_until,
        });

        Ok(doubt_until)
    }

    async fn brought_up(&self, now: UnixMillis) -> Result<WitnessedPosition, WitnessError> {
        let stream = self.marked.stream_name();
        for _ in 0..TRIES {
            let (known, revision) = self.kv.find(stream).await?;
            let witnessed = match &known {
                None => WitnessedPosition::default(),
                Some(known) => self.compare_known(known, now).await?,
            };

            let mut next = WitnessedPosition {
                position: self.last_position().await?,
                ..witnessed
            };
            // The doubt is settled once everything up to its end is handled: nothing is held for it any more.
            if let Some(until) = next.unsettled_until()
                && self.is_settled(until, now).await?
            {
                next.settled_until_ms = next.doubt_until_ms;
            }

            // Nothing new: no write, and no conflict for other replicas.
            if known.as_ref() == Some(&next) {
                return Ok(next);
            }

            match self.kv.update(stream, &next, revision).await {
                Ok(_) => return Ok(next),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }

        // Other replicas are updating it as well: their result counts.
        let (known, _) = self.kv.find(stream).await?;
        Ok(known.unwrap_or_default())
    }

    /// Keeps the witness up to date until `stop`, with a last update then; after a reconnect it is updated at once. At
    /// the start of each connection, the lost entries of the bucket of held messages are restored.
    pub async fn run_witness(self, clock: SharedClock, stop: ShutdownSignal) {
        let mut connections = self.bus.connections();
        let mut looked_at = None;
        loop {
            let stops = stop.is_requested();
            let connection = self.bus.connection_number();
            // The bucket may have been restored before this connection was made.
            if !stops && looked_at != Some(connection) {
                match self.bus.hold_again(self.marked.held_kind()).await {
                    Ok(_) => looked_at = Some(connection),
                    Err(error) => tracing::debug!(%error, "failed to check held messages"),
                }
            }

            let checked = tokio::time::timeout(EVERY, self.check(clock.now())).await;
            if !matches!(checked, Ok(Ok(_))) {
                let stream = self.marked.stream_name();
                tracing::debug!(stream, ?checked, "failed to update a stream witness");
            }

            if stops {
                return;
            }

            tokio::select! {
                () = stop.requested() => {}
                () = connections.stands_anew() => {}
                () = pause(EVERY) => {}
            }
        }
    }

    fn witness_name(&self) -> String {
        format!("witness of {}", self.marked.stream_name())
    }

    /// Reports whether the stream is complete or in doubt.
    fn report_standing(&self, witnessed: &WitnessedPosition) {
        match witnessed.unsettled_until() {
            None => told_sound(&self.witness_name()),
            Some(until) => {
                let stream = self.marked.stream_name();
                let sentence = format!(
                    "{stream} was restored, truncated or recreated: messages from before {} without a record are held (`nexus recover list`)",
                    until.to_rfc3339()
                );
                told_degraded(&self.witness_name(), sentence);
            }
        }
    }

    /// Returns the witness after the stream was compared with `known`.
    async fn compare_known(
        &self,
        known: &WitnessedPosition,
        now: UnixMillis,
    ) -> Result<WitnessedPosition, ReadStreamError> {
        let (stream, position) = (self.marked.stream_name(), &known.position);
        let why = match self.bus.check_position(stream, position).await? {
            PositionStanding::Void(why) => why,
            PositionStanding::Holds if self.was_emptied(position, now).await? => "the stream was emptied",
            PositionStanding::Holds => return Ok(known.clone()),
        };

        told_void(&self.witness_name(), stream, position, why);
        // The stream may lack any work done between the last witness and this moment.
        let witnessed = position.stored_at_ns / 1_000_000 + MARGIN_MS;

        Ok(WitnessedPosition {
            doubt_until_ms: known.doubt_until_ms.max(witnessed).max(now.0),
            ..known.clone()
        })
    }

    /// Returns whether no work from before `until` is waiting any more, neither in a stream nor for an operator.
    async fn is_settled(&self, until: UnixMillis, now: UnixMillis) -> Result<bool, ReadStreamError> {
        if now.since(until) < UNSETTLED_MS {
            return Ok(false);
        }

        let is_worked_off = match self.marked {
            MarkedStream::Dispatches => self.is_swept(until).await?,
            MarkedStream::Deliveries => {
                self.begins_behind(streams::DELIVERIES, until).await?
                    && self.begins_behind(streams::PARKED, until).await?
            }
        };

        // A message that an operator still has to decide about is in no stream's backlog, but it is not done.
        if !is_worked_off {
            return Ok(false);
        }

        let held = self.bus.held_bucket().entries().await?;
        let is_open = |wanted, kind| wanted == HeldUntil::Decided && kind == self.marked.held_kind();

        Ok(!held
            .iter()
            .any(|(_, entry)| is_open(entry.value.wanted, entry.value.kind)))
    }

    /// Returns whether every message in `stream` was stored after `until`.
    async fn begins_behind(&self, stream: &str, until: UnixMillis) -> Result<bool, ReadStreamError> {
        let state = self.bus.stream_state(stream).await?;
        let first = match state.messages {
            0 => None,
            _ => self.bus.next_on_subject(stream, ">", state.first).await?,
        };
        Ok(first.is_none_or(|first| first.published_at > until))
    }

    /// Returns whether the sweepers have found every dispatch handled that was stored before `until`.
    async fn is_swept(&self, until: UnixMillis) -> Result<bool, ReadStreamError> {
        let state = self.bus.stream_state(streams::DISPATCHES).await?;
        if state.messages == 0 {
            return Ok(true);
        }

        let Some(floor) = self.bus.swept_floor().await? else {
            return Ok(false);
        };

        Ok(floor.sequence >= state.last || floor.stored_at_ns / 1_000_000 > until.0)
    }

    /// Returns whether the message at `position` is gone although it has not reached the maximum age.
    async fn was_emptied(&self, position: &StreamPosition, now: UnixMillis) -> Result<bool, ReadStreamError> {
        let state = self.bus.stream_state(self.marked.stream_name()).await?;
        let age = now.since(UnixMillis(position.stored_at_ns / 1_000_000));
        let kept = millis_of(self.marked.max_age());
        let may_be_old = kept > 0 && age + MARGIN_MS >= kept;
        Ok(position.sequence > 0 && position.sequence < state.first && !may_be_old)
    }

    /// Returns the position of the stream's last message.
    async fn last_position(&self) -> Result<StreamPosition, ReadStreamError> {
        let stream = self.marked.stream_name();
        let info = self.bus.stream_info(stream).await?;
        let last = match info.state.messages {
            0 => None,
            _ => self.bus.at_sequence(stream, info.state.last).await?,
        };

        Ok(StreamPosition {
            incarnation: info.incarnation,
            sequence: last.as_ref().map_or(0, |last| last.sequence),
            stored_at_ns: last.map_or(0, |last| last.stored_at_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::OutgoingMessage;
    use crate::model::event::EventId;
    use crate::model::session::SessionRef;
    use crate::testing::{sample, world};
    use crate::wire::session_mark::{SettledFloor, sweeper_key};
    use crate::wire::subject;
    use crate::wire::topology::SESSION_PARTS;

    /// Stores `floor` for all parts.
    async fn put_floors(bus: &Bus, floor: &SettledFloor) {
        let floors = bus.kv(buckets::SESSION_CHECKPOINTS);
        for part in 0..SESSION_PARTS {
            floors.put(&sweeper_key(part), floor).await.expect("stored");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_floor_of_another_stream_settles_nothing() {
        let (_server, bus) = world().await;
        let witness = StreamWitness::new(&bus, MarkedStream::Dispatches);
        let until = UnixMillis(1);

        assert!(witness.is_swept(until).await.expect("told"), "nothing waits");

        let event = EventId::parse("test:1").expect("an id");
        let session = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };

        let waiting = sample::dispatch(event, 1, "hook", session, until);
        let waiting = OutgoingMessage::new(subject::dispatch(&waiting.target), &waiting);
        let stored = bus.publish(waiting).await.expect("stored");
        let position = bus
            .position_at(streams::DISPATCHES, stored.sequence)
            .await
            .expect("told");

        let floor = SettledFloor {
            sequence: stored.sequence,
            position,
        };
        put_floors(&bus, &floor).await;
        assert!(witness.is_swept(until).await.expect("told"), "everything was looked at");

        let floors = bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
        floors.delete(&sweeper_key(3), None).await.expect("deleted");
        assert!(
            !witness.is_swept(until).await.expect("told"),
            "one part was not looked at"
        );

        // The state after a restore of both: a floor beyond the stream, of messages that are not in it.
        let gone = floor.position.map(|position| StreamPosition {
            sequence: 9,
            stored_at_ns: i64::MAX,
            ..position
        });
        let floor = SettledFloor {
            sequence: 9,
            position: gone,
        };

        put_floors(&bus, &floor).await;
        assert!(
            !witness.is_swept(until).await.expect("told"),
            "the floor counts another stream"
        );
    }
}
