//! The witness of `DLQ`: its last dead letter, stored apart from it, so that a loss of letters is detected.
//!
//! Nothing is decided by dead letters, so that a loss needs no recovery. It is reported, because no service misses a
//! letter that is gone: a log line, `nexus_positions_void_total`, `/readyz` and `nexus doctor` for a day.

use std::time::Duration;

use crate::clock::{SharedClock, pause};
use crate::model::position::{FoundPosition, PositionStanding, StreamPosition, judge_position};
use crate::model::time::UnixMillis;
use crate::process::lifecycle::ShutdownSignal;
use crate::wire::topology::buckets;
use crate::wire::topology::streams::DLQ;
use crate::wire::witness::WitnessedPosition;

use super::connect::Bus;
use super::error::{CasError, ReadStreamError};
use super::kv::Kv;
use super::position::{told_degraded, told_sound, told_void};
use super::stream_info::StreamInfo;
use super::witness::WitnessError;

/// Interval at which the witness is updated.
const EVERY: Duration = Duration::from_secs(5);
/// Time for which a loss is reported, milliseconds.
const REPORTED_MS: i64 = 24 * 3_600_000;
/// Number of times that an update is repeated because another replica wrote the witness.
const TRIES: u32 = 8;
/// Name of the position in reports.
const WHAT: &str = "witness of DLQ";

/// The witness of `DLQ`.
#[derive(Debug, Clone)]
pub struct LetterWitness {
    bus: Bus,
    kv: Kv<WitnessedPosition>,
}

/// Returns why letters up to `position` may be lost from the stream with the data `info`, in which the message at the
/// position was stored at `stored_at_ns`. A letter that is published again or dropped is deleted, so that a missing
/// message proves nothing.
fn lost(position: &StreamPosition, info: &StreamInfo, stored_at_ns: Option<i64>) -> Option<&'static str> {
    if position.sequence == 0 {
        return None;
    }
    if info.state.last < position.sequence {
        return Some("the stream ends before it");
    }

    let found = FoundPosition {
        incarnation: &info.incarnation,
        lineage: &info.lineage,
        first: info.state.first,
        stored_at_ns: stored_at_ns.or(Some(position.stored_at_ns)),
    };
    match judge_position(position, &found) {
        PositionStanding::Holds => None,
        PositionStanding::Void(why) => Some(why),
    }
}

impl LetterWitness {
    /// Builds the witness of `DLQ` on `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            kv: bus.kv(buckets::POSITIONS),
            bus: bus.clone(),
        }
    }

    /// Compares `DLQ` with its witness, updates the witness, and reports a loss. Returns the time until which letters were
    /// stored that may be lost, if that is to be reported.
    ///
    /// # Errors
    /// Returns [`WitnessError`] if the stream or the bucket cannot be asked.
    pub async fn check(&self, now: UnixMillis) -> Result<Option<UnixMillis>, WitnessError> {
        let witnessed = self.brought_up(now).await?;
        let until = witnessed.unsettled_until();

        match until {
            None => told_sound(WHAT),
            Some(until) => {
                let sentence = format!(
                    "DLQ was restored, emptied or recreated: dead letters from before {} may be lost",
                    until.to_rfc3339()
                );
                told_degraded(WHAT, sentence);
            }
        }

        Ok(until)
    }

    async fn brought_up(&self, now: UnixMillis) -> Result<WitnessedPosition, WitnessError> {
        for _ in 0..TRIES {
            let (known, revision) = self.kv.find(DLQ).await?;
            let mut next = known.clone().unwrap_or_default();

            let info = self.bus.stream_info(DLQ).await?;
            let at = match next.position.sequence {
                0 => None,
                sequence => self.bus.at_sequence(DLQ, sequence).await?,
            };
            let why = lost(&next.position, &info, at.map(|stored| stored.stored_at_ns));
            if let Some(why) = why {
                told_void(WHAT, DLQ, &next.position, why);
                next.doubt_until_ms = now.0;
            }

            if next
                .unsettled_until()
                .is_some_and(|until| now.since(until) >= REPORTED_MS)
            {
                next.settled_until_ms = next.doubt_until_ms;
            }

            next.position = self.last(&info).await?;
            if known.as_ref() == Some(&next) {
                return Ok(next);
            }

            match self.kv.update(DLQ, &next, revision).await {
                Ok(_) => return Ok(next),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }

        // Other replicas are updating it as well: their result counts.
        let (known, _) = self.kv.find(DLQ).await?;
        Ok(known.unwrap_or_default())
    }

    /// Returns the position of the last letter, or of none.
    async fn last(&self, info: &StreamInfo) -> Result<StreamPosition, ReadStreamError> {
        let last = self.bus.last_on_subject(DLQ, ">").await?;
        Ok(StreamPosition {
            incarnation: info.incarnation.clone(),
            sequence: last.as_ref().map_or(0, |last| last.sequence),
            stored_at_ns: last.map_or(0, |last| last.stored_at_ns),
        })
    }

    /// Keeps the witness up to date until `stop`, with a last update then; after a reconnect it is updated at once.
    pub async fn keep(self, clock: SharedClock, stop: ShutdownSignal) {
        let mut connections = self.bus.connections();
        loop {
            let stops = stop.is_requested();
            let checked = tokio::time::timeout(EVERY, self.check(clock.now())).await;
            if !matches!(checked, Ok(Ok(_))) {
                tracing::debug!(stream = DLQ, ?checked, "failed to update a stream witness");
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world;
    use crate::wire::dead_letter::DeadLetter;

    fn letter(sequence: u64) -> DeadLetter {
        DeadLetter {
            service: "test".to_owned(),
            subject: "nexus.event.a.b.c".to_owned(),
            redrive_subject: "nexus.event.a.b.c".to_owned(),
            stream: "EVENTS".to_owned(),
            sequence,
            headers: Vec::new(),
            payload: String::new(),
            reason: "test".to_owned(),
            detail: String::new(),
            attempts: 1,
            at: UnixMillis(1),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn letters_that_are_worked_off_are_not_lost_and_those_of_a_stream_made_anew_are() {
        let (_server, bus) = world().await;
        let witness = LetterWitness::new(&bus);
        let check = async |now: i64| witness.check(UnixMillis(now)).await.expect("compared");
        assert_eq!(check(1).await, None, "there is no letter");

        for number in 1..=3 {
            bus.dead_letter_record(letter(number)).await.expect("stored");
        }
        assert_eq!(check(2).await, None);

        // An operator publishes letters again: each is deleted, the last one first.
        for sequence in [3, 2, 1] {
            assert!(bus.delete_message(DLQ, sequence).await.expect("asked"));
            assert_eq!(check(3).await, None, "letter {sequence} was worked off");
        }

        // The stream is made anew, and more letters than before are stored.
        bus.dead_letter_record(letter(4)).await.expect("stored");
        assert_eq!(check(4).await, None);
        bus.renew_incarnation(DLQ).await.expect("as a stream made anew");
        for number in 5..=9 {
            bus.dead_letter_record(letter(number)).await.expect("stored");
        }
        let until = Some(UnixMillis(5_000));
        assert_eq!(check(5_000).await, until);
        assert!(super::super::position::void_positions().contains_key(WHAT));

        // Another replica says so as well, for a day.
        let other = LetterWitness::new(&bus);
        let day = UnixMillis(5_000 + REPORTED_MS);
        assert_eq!(other.check(day.plus(-1)).await.expect("compared"), until);
        assert_eq!(other.check(day).await.expect("compared"), None);
    }

    #[test]
    fn a_stream_that_ends_before_its_witness_has_lost_letters() {
        let position = StreamPosition {
            incarnation: "a".to_owned(),
            sequence: 20,
            stored_at_ns: 700,
        };
        let info = |first, last| StreamInfo {
            incarnation: "a".to_owned(),
            state: crate::bus::StreamState {
                first,
                last,
                ..crate::bus::StreamState::default()
            },
            ..StreamInfo::default()
        };

        assert_eq!(lost(&position, &info(1, 25), Some(700)), None);
        assert_eq!(lost(&position, &info(1, 25), None), None, "it was worked off");
        assert_eq!(lost(&position, &info(21, 20), None), None, "all were");
        assert!(lost(&position, &info(1, 19), None).is_some(), "put back, or emptied");
        assert!(lost(&position, &info(1, 25), Some(701)).is_some(), "and grown since");
        assert_eq!(
            lost(&StreamPosition::default(), &info(1, 0), None),
            None,
            "there was none"
        );
    }
}
