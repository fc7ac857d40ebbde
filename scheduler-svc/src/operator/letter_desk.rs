//! Redriving and dropping dead letters, each once.
//!
//! A redrive is recorded in `AUDIT` with the id of its message, then published, recorded as published, and only then its
//! letter is deleted. A process that is killed in between leaves a record from which the next request goes on, at
//! whichever replica: within the server's duplicate window the message's id keeps it single, and later the message is
//! looked for where it would be stored.

use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage, PublishError, ReadStreamError, StoredMessage};
use shared::clock::{SharedClock, SharedIds};
use shared::model::position::{FoundPosition, StreamPlace, StreamPosition};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, MSG_ID, REDRIVE, WRITER};
use shared::wire::held::HELD_LETTER;
use shared::wire::operator::letters::{DecideLetter, LetterDropped, LetterRecord, LetterRedriven, LetterStep};
use shared::wire::subject::letter_audit;
use shared::wire::topology::streams::{AUDIT, DLQ};
use ulid::Ulid;

use super::letter_error::LetterError;
use super::letter_fate::{
    DropStep, LetterFate, RedriveStep, drop_step, fate_of, is_still_published, newest_letter, redrive_step,
};

/// Number of tries of a request that others contend for.
const MAX_TRIES: u32 = 8;
/// Longest time for which one publish is repeated while the server does not store it.
const PUBLISH_WITHIN: Duration = Duration::from_secs(8);
/// Maximum number of messages among which a redriven one is looked for.
const MAX_SEARCHED: usize = 16_384;
/// Time before the record of a redrive from which its message is looked for: clocks of servers differ, nanoseconds.
const BEFORE_RECORD_NS: i64 = 2_000_000_000;

/// A dead letter with its records.
struct KnownLetter {
    number: u64,
    letter: Option<StoredMessage>,
    place: StreamPlace,
    records: Vec<LetterRecord>,
    /// Sequence of the last record of the number; 0 = there is none.
    last_record: u64,
    /// Time at which the last record was stored, in nanoseconds since 1970.
    recorded_at_ns: i64,
}

impl KnownLetter {
    fn fate(&self) -> LetterFate {
        fate_of(self.place, &self.records)
    }

    /// Returns the letter, which is there.
    fn read(&self) -> Result<DeadLetter, LetterError> {
        let stored = self.letter.as_ref().ok_or(LetterError::Absent(self.number))?;
        stored.decode().map_err(|error| LetterError::Unreadable {
            number: self.number,
            error: error.to_string(),
        })
    }
}

/// Where the dead letters are handled.
#[derive(Debug, Clone)]
pub struct LetterDesk {
    pub(super) bus: Bus,
    clock: SharedClock,
    ids: SharedIds,
}

impl LetterDesk {
    /// Returns the desk over `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: &SharedClock, ids: &SharedIds) -> Self {
        Self {
            bus: bus.clone(),
            clock: clock.clone(),
            ids: ids.clone(),
        }
    }

    /// Publishes the message of a dead letter again, and deletes the letter.
    ///
    /// # Errors
    /// Returns [`LetterError`]. After [`LetterError::Late`] or an error of a stream the same request goes on.
    pub async fn redrive(&self, request: &DecideLetter) -> Result<LetterRedriven, LetterError> {
        for _ in 0..MAX_TRIES {
            let known = self.find(request).await?;
            let fate = known.fate();
            let step = redrive_step(&fate, known.letter.is_some());
            let done = match (step, fate) {
                (RedriveStep::Begin, _) => self.begin_redrive(&known, request).await?,
                (RedriveStep::GoOn(operation), _) => self.publish_letter(&known, request, operation, true).await?,
                (
                    RedriveStep::Confirm,
                    LetterFate::Redriven {
                        subject,
                        stream,
                        position,
                    },
                ) => {
                    if self.is_published(&stream, &position).await? {
                        self.bus.delete_message(DLQ, known.number).await?;
                        return Ok(redriven(known.number, subject, position.sequence, true));
                    }
                    self.begin_redrive(&known, request).await?
                }
                (RedriveStep::Answer, LetterFate::Redriven { subject, position, .. }) => {
                    return Ok(redriven(known.number, subject, position.sequence, true));
                }
                (_, LetterFate::Dropped { by, at, .. }) => {
                    let (number, at) = (known.number, at.to_rfc3339());
                    return Err(LetterError::Dropped { number, by, at });
                }
                (RedriveStep::Confirm | RedriveStep::Answer | RedriveStep::IsDropped | RedriveStep::Absent, _) => {
                    return Err(LetterError::Absent(known.number));
                }
            };
            if let Some(done) = done {
                return Ok(done);
            }
        }

        Err(LetterError::Contended(request.number))
    }

    /// Deletes a dead letter for good.
    ///
    /// # Errors
    /// Returns [`LetterError`]. After an error of a stream the same request goes on.
    pub async fn drop_letter(&self, request: &DecideLetter) -> Result<LetterDropped, LetterError> {
        for _ in 0..MAX_TRIES {
            let known = self.find(request).await?;
            let number = known.number;
            let fate = known.fate();
            let step = self.confirmed_drop_step(&known, &fate).await?;
            let (service, reason, repeated) = match (step, fate) {
                (DropStep::Begin, _) => {
                    let (service, reason) = dropped_words(&known)?;
                    let step = LetterStep::Dropped {
                        service: service.clone(),
                        reason: reason.clone(),
                    };
                    if self.record(&known, request, self.ids.ulid(), step).await?.is_none() {
                        continue;
                    }
                    (service, reason, false)
                }
                (DropStep::GoOn | DropStep::Answer, LetterFate::Dropped { service, reason, .. }) => {
                    (service, reason, true)
                }
                (DropStep::IsRedriving, _) => return Err(LetterError::Redriving(number)),
                (DropStep::GoOn | DropStep::Answer | DropStep::Confirm | DropStep::Absent, _) => {
                    return Err(LetterError::Absent(number));
                }
            };

            if known.letter.is_some() {
                self.bus.delete_message(DLQ, number).await?;
            }
            tracing::info!(number, by = request.by, service, reason, "dead letter dropped");
            return Ok(LetterDropped {
                number,
                service,
                reason,
                repeated,
            });
        }

        Err(LetterError::Contended(request.number))
    }

    /// Returns the step of a request to drop `known`. A letter whose redrive has published its message is deleted as the redrive
    /// does it, and is absent then.
    async fn confirmed_drop_step(&self, known: &KnownLetter, fate: &LetterFate) -> Result<DropStep, LetterError> {
        let step = drop_step(fate, known.letter.is_some());
        let (DropStep::Confirm, LetterFate::Redriven { stream, position, .. }) = (step, fate) else {
            return Ok(step);
        };
        if !self.is_published(stream, position).await? {
            return Ok(DropStep::Begin);
        }

        self.bus.delete_message(DLQ, known.number).await?;
        Ok(DropStep::Absent)
    }

    /// Returns the records of `number`, oldest first, with sequence and time of the last one.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if `AUDIT` cannot be read.
    pub async fn records(&self, number: u64) -> Result<(Vec<LetterRecord>, u64, i64), ReadStreamError> {
        let subject = letter_audit(number);
        let (mut records, mut last, mut at_ns) = (Vec::new(), 0, 0);
        while let Some(stored) = self.bus.next_on_subject(AUDIT, &subject, last + 1).await? {
            (last, at_ns) = (stored.sequence, stored.stored_at_ns);
            match stored.decode() {
                Ok(record) => records.push(record),
                Err(error) => tracing::warn!(sequence = last, %error, "unreadable record of a dead letter"),
            }
        }

        Ok((records, last, at_ns))
    }

    /// Returns the letter that `request` names, with its records, from the leaders.
    async fn find(&self, request: &DecideLetter) -> Result<KnownLetter, LetterError> {
        shared::wire::operator::check_speaker(&request.by).map_err(LetterError::Speaker)?;
        let number = request.number;
        // The records first: what is recorded later than this makes the next record fail.
        let (records, last_record, recorded_at_ns) = self.records(number).await?;
        let letter = self.bus.at_sequence(DLQ, number).await?;

        let found = letter.as_ref().map(|stored| StreamPlace {
            sequence: number,
            stored_at_ns: stored.stored_at_ns,
        });
        let place = found
            .or_else(|| newest_letter(&records))
            .ok_or(LetterError::Absent(number))?;
        if request.stored_at_ns.is_some_and(|listed| listed != place.stored_at_ns) {
            return Err(LetterError::Another(number));
        }

        Ok(KnownLetter {
            number,
            letter,
            place,
            records,
            last_record,
            recorded_at_ns,
        })
    }

    /// Records that a redrive begins, and does it. Returns `None` if another request was first.
    async fn begin_redrive(
        &self,
        known: &KnownLetter,
        request: &DecideLetter,
    ) -> Result<Option<LetterRedriven>, LetterError> {
        let letter = known.read()?;
        message_of(known.number, &letter)?;
        // The bus would wait for a stream for minutes: it may be missing for a moment only.
        if self.bus.stream_of(&letter.redrive_subject).await?.is_none() {
            return Err(LetterError::NoStream {
                number: known.number,
                subject: letter.redrive_subject,
            });
        }

        let operation = self.ids.ulid();
        let step = LetterStep::RedriveBegun {
            subject: letter.redrive_subject,
            service: letter.service,
            reason: letter.reason,
        };
        match self.record(known, request, operation, step).await? {
            None => Ok(None),
            Some(last_record) => {
                let begun = KnownLetter {
                    letter: known.letter.clone(),
                    records: Vec::new(),
                    last_record,
                    ..*known
                };
                self.publish_letter(&begun, request, operation, false).await
            }
        }
    }

    /// Publishes the message of `known`, whose last record begins `operation`, unless that is done; then deletes the
    /// letter. Returns `None` if another request was first.
    async fn publish_letter(
        &self,
        known: &KnownLetter,
        request: &DecideLetter,
        operation: Ulid,
        is_repeated: bool,
    ) -> Result<Option<LetterRedriven>, LetterError> {
        let number = known.number;
        let letter = known.read()?;
        let id = format!("{REDRIVE}{number}:{operation}");
        let out = message_of(number, &letter)?.msg_id(&id);
        let subject = out.subject.clone();
        let Some(stream) = self.bus.stream_of(&subject).await? else {
            return Err(LetterError::NoStream { number, subject });
        };

        let earlier = match is_repeated {
            true => self.search(&stream, &subject, &id, known.recorded_at_ns).await?,
            false => None,
        };
        let sequence = match earlier {
            Some(sequence) => sequence,
            None => match tokio::time::timeout(PUBLISH_WITHIN, self.bus.publish(out)).await {
                Ok(Ok(published)) => published.sequence,
                Ok(Err(
                    error @ (PublishError::TooLarge { .. }
                    | PublishError::Rejected { .. }
                    | PublishError::SubjectFull { .. }),
                )) => {
                    let step = LetterStep::RedriveRefused {
                        error: error.to_string(),
                    };
                    self.record(known, request, operation, step).await?;
                    return Err(LetterError::Refused { number, error });
                }
                Ok(Err(_)) | Err(_) => return Err(LetterError::Late(number)),
            },
        };

        let position = self.position(&stream, sequence).await?;
        let step = LetterStep::Redriven {
            subject: subject.clone(),
            stream,
            position,
        };
        if self.record(known, request, operation, step).await?.is_none() {
            return Ok(None);
        }

        self.bus.delete_message(DLQ, number).await?;
        tracing::info!(number, by = request.by, subject, sequence, "dead letter redriven");
        Ok(Some(redriven(number, subject, sequence, is_repeated)))
    }

    /// Writes a record behind the last one of `known`. Returns its sequence, or `None` if another one came first.
    async fn record(
        &self,
        known: &KnownLetter,
        request: &DecideLetter,
        operation: Ulid,
        step: LetterStep,
    ) -> Result<Option<u64>, LetterError> {
        let record = LetterRecord {
            letter: known.place,
            operation,
            by: request.by.clone(),
            at: self.clock.now(),
            step,
        };
        let out = OutgoingMessage::new(letter_audit(known.number), &record).expect_last(known.last_record);
        match tokio::time::timeout(PUBLISH_WITHIN, self.bus.publish(out)).await {
            Ok(Ok(published)) => Ok(Some(published.sequence)),
            Ok(Err(PublishError::WrongLastSequence { .. })) => Ok(None),
            Ok(Err(error)) => Err(LetterError::Record(error)),
            Err(_) => Err(LetterError::Late(known.number)),
        }
    }

    /// Returns the sequence of the message `id` that was published on `subject` at or after `since_ns`, if it is there.
    async fn search(
        &self,
        stream: &str,
        subject: &str,
        id: &str,
        since_ns: i64,
    ) -> Result<Option<u64>, ReadStreamError> {
        let filter = shared::bus::dead_letter::stored_filter(subject);
        let mut from = self.bus.stored_by(stream, since_ns - BEFORE_RECORD_NS).await?.sequence + 1;
        for _ in 0..MAX_SEARCHED {
            let Some(stored) = self.bus.next_on_subject(stream, &filter, from).await? else {
                return Ok(None);
            };
            if stored.headers.get(MSG_ID) == Some(id) {
                return Ok(Some(stored.sequence));
            }
            from = stored.sequence + 1;
        }

        tracing::warn!(
            stream,
            subject,
            id,
            "a redriven message is not among those that were searched; publishing it"
        );
        Ok(None)
    }

    /// Returns the position of the message at `sequence`; its time is 0 if a queue has worked it off already.
    async fn position(&self, stream: &str, sequence: u64) -> Result<StreamPosition, ReadStreamError> {
        let found = self.bus.at_sequence(stream, sequence).await?;
        Ok(StreamPosition {
            incarnation: self.bus.stream_info(stream).await?.incarnation,
            sequence,
            stored_at_ns: found.map_or(0, |found| found.stored_at_ns),
        })
    }

    async fn is_published(&self, stream: &str, position: &StreamPosition) -> Result<bool, ReadStreamError> {
        let info = self.bus.stream_info(stream).await?;
        let stored = self.bus.at_sequence(stream, position.sequence).await?;
        let found = FoundPosition {
            incarnation: &info.incarnation,
            lineage: &info.lineage,
            first: info.state.first,
            stored_at_ns: stored.map(|stored| stored.stored_at_ns),
        };
        Ok(is_still_published(position, info.state.last, &found))
    }
}

const fn redriven(number: u64, subject: String, sequence: u64, repeated: bool) -> LetterRedriven {
    LetterRedriven {
        number,
        subject,
        sequence,
        repeated,
    }
}

/// Returns the service and the reason of the letter that is to be dropped; empty if it cannot be read.
fn dropped_words(known: &KnownLetter) -> Result<(String, String), LetterError> {
    match known.read() {
        Ok(letter) if letter.service == HELD_LETTER => Err(LetterError::Held(known.number)),
        Ok(letter) => Ok((letter.service, letter.reason)),
        Err(LetterError::Unreadable { .. }) => Ok((String::new(), "unreadable".to_owned())),
        Err(error) => Err(error),
    }
}

/// Returns the message of dead letter `number` as it is published again, without its id.
///
/// # Errors
/// Returns [`LetterError`] if the letter has no message that can be published.
fn message_of(number: u64, letter: &DeadLetter) -> Result<OutgoingMessage, LetterError> {
    if letter.service == HELD_LETTER {
        return Err(LetterError::Held(number));
    }
    if letter.redrive_subject.is_empty() {
        return Err(match letter.stream.is_empty() {
            true => LetterError::Foreign(number),
            false => LetterError::WithoutMessage {
                number,
                stream: letter.stream.clone(),
                sequence: letter.sequence,
            },
        });
    }

    // These headers belong to the first publication: with them the server would drop or refuse the second.
    let of_the_first = [MSG_ID, EXPECTED_LAST_SUBJECT_SEQUENCE, WRITER];
    let kept = letter
        .headers
        .iter()
        .filter(|(name, _)| !of_the_first.iter().any(|left_out| name.eq_ignore_ascii_case(left_out)));
    let headers: Headers = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let payload = letter.payload_bytes().ok_or(LetterError::Payload(number))?;

    Ok(OutgoingMessage::raw(
        letter.redrive_subject.clone(),
        headers,
        payload.into(),
    ))
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn a_letter_that_names_no_subject_is_not_redriven() {
        let mut letter = DeadLetter {
            service: "broker-svc".to_owned(),
            subject: "nexus.ledger.a.b".to_owned(),
            redrive_subject: "nexus.delivery.a.b.c".to_owned(),
            stream: "LEDGER".to_owned(),
            sequence: 7,
            headers: vec![
                ("nats-msg-id".to_owned(), "x".to_owned()),
                ("A".to_owned(), "b".to_owned()),
            ],
            payload: DeadLetter::encode_payload(b"x"),
            reason: "reply_refused".to_owned(),
            detail: String::new(),
            attempts: 1,
            at: UnixMillis(1),
        };

        let out = message_of(3, &letter).expect("its message");
        assert_eq!(
            (out.payload.as_ref(), out.subject.as_str()),
            (&b"x"[..], "nexus.delivery.a.b.c")
        );
        assert_eq!(out.headers.iter().collect::<Vec<_>>(), [("A", "b")]);

        letter.redrive_subject.clear();
        let refused = message_of(3, &letter).expect_err("it holds nothing").to_string();
        assert!(
            refused.contains("dead letter 3 cannot be redriven") && refused.contains("LEDGER at 7"),
            "{refused}"
        );
        letter.stream.clear();
        let refused = message_of(3, &letter).expect_err("it holds nothing").to_string();
        assert!(refused.contains("Nexus cannot read the platform's data"), "{refused}");
        letter.service = HELD_LETTER.to_owned();
        assert!(matches!(message_of(3, &letter), Err(LetterError::Held(3))));
    }
}
