//! Witnesses: how far a stream had come, kept apart from it, so that one that was put back to an older state is noticed.
//!
//! A stream of done-markers (`LEDGER`, `RECEIPTS`) that is older than what it marks says "not done" of work that was.
//! Its witness names its last message every few seconds, in a bucket of its own. Where that message is gone, everything
//! that was under way until this was noticed and that the stream does not know is neither done nor undone: it is held. The
//! doubt stays for what comes again later; it is told as settled once nothing waits that it concerns.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{SharedClock, pause};
use crate::model::position::{Position, Standing};
use crate::model::time::UnixMillis;
use crate::process::lifecycle::Shutdown;
use crate::wire::held::{HeldKind, HeldUntil};
use crate::wire::session_mark::{SWEEPER, SettledFloor};
use crate::wire::topology::{RECEIPTS_KEPT, buckets, streams};
use crate::wire::witness::Witnessed;

use super::connect::Bus;
use super::error::{CasError, ReadStreamError};
use super::kv::Kv;
use super::position::{told_degraded, told_sound, told_void};

/// How often a witness is brought up to date.
const EVERY: Duration = Duration::from_secs(2);
/// How far a stream may have come behind its last witness, and servers' clocks be apart, milliseconds.
const MARGIN_MS: i64 = 5_000;
/// How often a witness is asked anew because another replica wrote it.
const TRIES: u32 = 8;
/// How long after a loss nothing is called settled, milliseconds: what recovers may publish again what was under way.
const UNSETTLED_MS: i64 = 15_000;

/// What a witnessed stream marks as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// Dispatches, in `LEDGER`.
    Dispatches,
    /// Deliveries, in `RECEIPTS`.
    Deliveries,
}

impl Marked {
    const fn stream(self) -> &'static str {
        match self {
            Self::Dispatches => streams::LEDGER,
            Self::Deliveries => streams::RECEIPTS,
        }
    }

    /// How long the stream keeps messages; zero = for ever.
    const fn max_age(self) -> Duration {
        match self {
            Self::Dispatches => Duration::ZERO,
            Self::Deliveries => RECEIPTS_KEPT,
        }
    }

    const fn held(self) -> HeldKind {
        match self {
            Self::Dispatches => HeldKind::Dispatch,
            Self::Deliveries => HeldKind::Delivery,
        }
    }
}

/// The witness of one stream. Clones share what was found.
#[derive(Debug, Clone)]
pub struct Witness {
    bus: Bus,
    marked: Marked,
    kv: Kv<Witnessed>,
    /// Over which connection the stream was compared last, and until when work is in doubt.
    found: Arc<Mutex<Option<Found>>>,
}

#[derive(Debug, Clone, Copy)]
struct Found {
    connection: u64,
    doubt_until: Option<UnixMillis>,
}

/// A witness cannot be asked or kept.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// The leader cannot be asked.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The bucket takes no value.
    #[error(transparent)]
    Write(#[from] CasError),
}

impl Witness {
    /// The witness of the stream that marks what of `marked` is done.
    #[must_use]
    pub fn new(bus: &Bus, marked: Marked) -> Self {
        Self {
            kv: bus.kv(buckets::POSITIONS),
            bus: bus.clone(),
            marked,
            found: Arc::default(),
        }
    }

    /// Until when work may have been done that the stream does not know of; none = the stream knows everything. Compared
    /// once for every connection, and from then on whenever the witness is [kept](Self::keep).
    ///
    /// # Errors
    /// [`WitnessError`]: nothing may be inferred from the stream's silence then.
    pub async fn doubt_until(&self, now: UnixMillis) -> Result<Option<UnixMillis>, WitnessError> {
        let known = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) if known.connection == self.bus.connection_number() => Ok(known.doubt_until),
            Some(_) | None => self.check(now).await,
        }
    }

    /// Compares the stream with its witness and brings that up to date. Answers as [`Self::doubt_until`].
    ///
    /// # Errors
    /// As [`Self::doubt_until`].
    pub async fn check(&self, now: UnixMillis) -> Result<Option<UnixMillis>, WitnessError> {
        // One that ends meanwhile is found to be another one by whoever asks next.
        let connection = self.bus.connection_number();
        let witnessed = self.brought_up(now).await?;
        self.tell(&witnessed);

        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let known = found.and_then(|found| found.doubt_until);

        // What was once in doubt stays so, also where the witness itself is lost.
        let doubt_until = known.max(witnessed.doubt_until());
        *found = Some(Found {
            connection,
            doubt_until,
        });

        Ok(doubt_until)
    }

    async fn brought_up(&self, now: UnixMillis) -> Result<Witnessed, WitnessError> {
        let stream = self.marked.stream();
        for _ in 0..TRIES {
            let (known, revision) = self.kv.find(stream).await?;
            let witnessed = match &known {
                None => Witnessed::default(),
                Some(known) => self.compared(known, now).await?,
            };

            let mut next = Witnessed {
                position: self.last().await?,
                ..witnessed
            };
            if let Some(until) = next.unsettled_until()
                && self.is_settled(until, now).await?
            {
                next.settled_until_ms = next.doubt_until_ms;
            }

            if known.as_ref() == Some(&next) {
                return Ok(next);
            }

            match self.kv.update(stream, &next, revision).await {
                Ok(_) => return Ok(next),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }

        // Others are as busy with it: what they found counts.
        let (known, _) = self.kv.find(stream).await?;
        Ok(known.unwrap_or_default())
    }

    /// Keeps the witness up to date until `stop`, and once more then; where the connection stands anew, at once. At each
    /// beginning of a connection it is looked whether the bucket of what is held has lost something.
    pub async fn keep(self, clock: SharedClock, stop: Shutdown) {
        let mut connections = self.bus.connections();
        let mut looked_at = None;
        loop {
            let stops = stop.is_requested();
            let connection = self.bus.connection_number();
            if !stops && looked_at != Some(connection) {
                match self.bus.hold_again(self.marked.held()).await {
                    Ok(_) => looked_at = Some(connection),
                    Err(error) => tracing::debug!(%error, "what is held was not looked through"),
                }
            }

            let checked = tokio::time::timeout(EVERY, self.check(clock.now())).await;
            if !matches!(checked, Ok(Ok(_))) {
                let stream = self.marked.stream();
                tracing::debug!(stream, ?checked, "witness was not brought up to date");
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

    fn what(&self) -> String {
        format!("witness of {}", self.marked.stream())
    }

    /// Says how the stream stands.
    fn tell(&self, witnessed: &Witnessed) {
        match witnessed.unsettled_until() {
            None => told_sound(&self.what()),
            Some(until) => {
                let stream = self.marked.stream();
                let sentence = format!(
                    "{stream} was put back, cut or made anew: what was under way until {} ms since 1970 and has no record is held",
                    until.0
                );
                told_degraded(&self.what(), sentence);
            }
        }
    }

    /// What is known once the stream was compared with `known`.
    async fn compared(&self, known: &Witnessed, now: UnixMillis) -> Result<Witnessed, ReadStreamError> {
        let (stream, position) = (self.marked.stream(), &known.position);
        let why = match self.bus.standing(stream, position).await? {
            Standing::Void(why) => why,
            Standing::Holds if self.was_emptied(position, now).await? => "the stream was emptied",
            Standing::Holds => return Ok(known.clone()),
        };

        told_void(&self.what(), stream, position, why);
        // Whatever was done between the last witness and this moment may be unknown to the stream.
        let witnessed = position.stored_at_ns / 1_000_000 + MARGIN_MS;

        Ok(Witnessed {
            doubt_until_ms: known.doubt_until_ms.max(witnessed).max(now.0),
            ..known.clone()
        })
    }

    /// Whether nothing waits any more that was under way before `until`, neither in a stream nor for an operator.
    async fn is_settled(&self, until: UnixMillis, now: UnixMillis) -> Result<bool, ReadStreamError> {
        if now.since(until) < UNSETTLED_MS {
            return Ok(false);
        }

        let is_worked_off = match self.marked {
            Marked::Dispatches => self.is_swept(until).await?,
            Marked::Deliveries => {
                self.begins_behind(streams::DELIVERIES, until).await?
                    && self.begins_behind(streams::PARKED, until).await?
            }
        };

        if !is_worked_off {
            return Ok(false);
        }

        let held = self.bus.held().entries().await?;
        let is_open = |wanted, kind| wanted == HeldUntil::Decided && kind == self.marked.held();

        Ok(!held
            .iter()
            .any(|(_, entry)| is_open(entry.value.wanted, entry.value.kind)))
    }

    /// Whether everything in `stream` was stored after `until`.
    async fn begins_behind(&self, stream: &str, until: UnixMillis) -> Result<bool, ReadStreamError> {
        let state = self.bus.stream_state(stream).await?;
        let first = match state.messages {
            0 => None,
            _ => self.bus.next_on_subject(stream, ">", state.first).await?,
        };
        Ok(first.is_none_or(|first| first.published_at > until))
    }

    /// Whether the sweeper has found all dispatches handled that were stored before `until`.
    async fn is_swept(&self, until: UnixMillis) -> Result<bool, ReadStreamError> {
        let state = self.bus.stream_state(streams::DISPATCHES).await?;
        if state.messages == 0 {
            return Ok(true);
        }

        let (floor, _) = self
            .bus
            .kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS)
            .find(SWEEPER)
            .await?;
        let Some((floor, position)) = floor.and_then(|floor| Some((floor.sequence, floor.position?))) else {
            return Ok(false);
        };

        // A restore may have put both streams back: a floor of the former one says nothing about what waits in this one.
        if self.bus.standing(streams::DISPATCHES, &position).await? != Standing::Holds {
            return Ok(false);
        }

        Ok(floor >= state.last || position.stored_at_ns / 1_000_000 > until.0)
    }

    /// Whether the message at `position` is gone although it is not old enough for that.
    async fn was_emptied(&self, position: &Position, now: UnixMillis) -> Result<bool, ReadStreamError> {
        let state = self.bus.stream_state(self.marked.stream()).await?;
        let age = now.since(UnixMillis(position.stored_at_ns / 1_000_000));
        let kept = i64::try_from(self.marked.max_age().as_millis()).unwrap_or(i64::MAX);
        let may_be_old = kept > 0 && age + MARGIN_MS >= kept;
        Ok(position.sequence > 0 && position.sequence < state.first && !may_be_old)
    }

    /// The stream's last message.
    async fn last(&self) -> Result<Position, ReadStreamError> {
        let stream = self.marked.stream();
        let info = self.bus.stream_info(stream).await?;
        let last = match info.state.messages {
            0 => None,
            _ => self.bus.at_sequence(stream, info.state.last).await?,
        };

        Ok(Position {
            incarnation: info.incarnation,
            sequence: last.as_ref().map_or(0, |last| last.sequence),
            stored_at_ns: last.map_or(0, |last| last.stored_at_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Outgoing;
    use crate::model::event::EventId;
    use crate::model::session::SessionRef;
    use crate::testing::{sample, world};
    use crate::wire::subject;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_floor_of_another_stream_settles_nothing() {
        let (_server, bus) = world().await;
        let witness = Witness::new(&bus, Marked::Dispatches);
        let floors = bus.kv(buckets::SESSION_CHECKPOINTS);
        let until = UnixMillis(1);

        assert!(witness.is_swept(until).await.expect("told"), "nothing waits");

        let event = EventId::parse("test:1").expect("an id");
        let session = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };

        let waiting = sample::dispatch(event, 1, "hook", session, until);
        let waiting = Outgoing::new(subject::dispatch(&waiting.target), &waiting);
        let stored = bus.publish(waiting).await.expect("stored");
        let position = bus
            .position_at(streams::DISPATCHES, stored.sequence)
            .await
            .expect("told");

        let floor = SettledFloor {
            sequence: stored.sequence,
            position,
        };
        floors.put(SWEEPER, &floor).await.expect("stored");
        assert!(witness.is_swept(until).await.expect("told"), "everything was looked at");

        // As after a restore of both: further than the stream, and of messages that are not in it.
        let gone = floor.position.map(|position| Position {
            sequence: 9,
            stored_at_ns: i64::MAX,
            ..position
        });
        let floor = SettledFloor {
            sequence: 9,
            position: gone,
        };

        floors.put(SWEEPER, &floor).await.expect("stored");
        assert!(
            !witness.is_swept(until).await.expect("told"),
            "the floor counts another stream"
        );
    }
}
