//! Notes of the events whose files are still to be fetched, in KV `fetches`.
//!
//! A note is the event's sealed message, and is admitted as a message of `EVENTS` is: a client that can write the
//! bucket, and has no key of the cluster, cannot speak as an account's user.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shared::bus::{Bus, CasError, Kv, OutgoingMessage, PublishError, ReadStreamError};
use shared::clock::{Clock as _, SharedClock, SystemClock, pause};
use shared::model::event::Event;
use shared::model::origin::EventOrigin;
use shared::model::time::{UnixMillis, millis_of};
use shared::wire::envelope::{DecodeError, MAX_PAYLOAD_BYTES, WireMessage};
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::seal::{ReadEventError, TrustKeys};
use shared::wire::subject::token;
use shared::wire::topology::buckets;

use crate::encoded_event::{EncodedEvent, NoteStep};
use crate::error::AcceptEventsError;

/// Size of a note beside its event, in bytes, rounded up.
const OVERHEAD_BYTES: usize = 8 * 1024;

/// Time for which the marker of a removed note is kept. Keys are used once, so that markers would gather.
const MARKER_KEPT: Duration = Duration::from_mins(1);
/// Time for which a keeper may publish the event of a note that it has claimed.
pub const CLAIM_LASTS: Duration = Duration::from_secs(5);
/// Time between two looks at a claimed note.
const CLAIM_LOOK_EVERY: Duration = Duration::from_millis(25);
/// Header of markers.
const OPERATION: &str = "KV-Operation";

/// An event with open files, as it is stored in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchNote {
    message: EncodedEvent,
    /// Time until which a keeper publishes the event with its files. No other version takes the note's place before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claimed_until: Option<UnixMillis>,
}

impl WireMessage for FetchNote {
    const SCHEMA: &'static str = "fetch_note";
    const MAX_BYTES: usize = MAX_PAYLOAD_BYTES + OVERHEAD_BYTES;
}

/// The reason why an event cannot be noted.
#[derive(Debug, thiserror::Error)]
pub enum WriteNoteError {
    /// The event can never be noted.
    #[error(transparent)]
    Event(#[from] AcceptEventsError),
    /// The note was not written.
    #[error(transparent)]
    Write(#[from] CasError),
    /// The note of an earlier version was not removed.
    #[error(transparent)]
    Remove(#[from] ReadStreamError),
    /// The server did not answer in time.
    #[error("KV fetches did not answer in time")]
    Late,
}

impl WriteNoteError {
    /// Returns whether the same event may be noted later.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::Event(_) => false,
            Self::Write(CasError::Publish(PublishError::TooLarge { .. })) => false,
            Self::Write(_) | Self::Remove(_) | Self::Late => true,
        }
    }
}

/// The reason why a note is not followed.
#[derive(Debug, thiserror::Error)]
pub enum RefuseNoteError {
    /// It is no note.
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
    /// Its message is none that readers of `EVENTS` accept.
    #[error(transparent)]
    Event(#[from] ReadEventError),
    /// Its message is none of an account's.
    #[error("the event has origin {0}; only those of a platform's account are noted")]
    Origin(EventOrigin),
    /// It is that of another event.
    #[error("the note of event {0} has another key")]
    Key(String),
}

impl RefuseNoteError {
    /// Returns the reason in metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Event(error) => error.reason(),
            Self::Origin(_) => "origin",
            Self::Key(_) => "key",
        }
    }
}

impl FetchNote {
    /// Returns the note of `event`, sealed with the keys of `bus`.
    ///
    /// # Errors
    /// Returns [`AcceptEventsError`] if the event cannot be stored.
    pub fn of_event(event: &Event, bus: &Bus) -> Result<Self, AcceptEventsError> {
        let max = match bus.max_payload() {
            0 => usize::MAX,
            max => max,
        };
        let message = EncodedEvent::encode_event(event, bus.trust(), &TraceCarrier::default(), max)?;
        Ok(Self::of_message(message))
    }

    /// Returns the note of the event in `message`.
    #[must_use]
    pub fn of_message(message: EncodedEvent) -> Self {
        let message = EncodedEvent {
            note: NoteStep::Settled,
            ..message
        };
        Self {
            message,
            claimed_until: None,
        }
    }

    /// Returns the event that is noted under `key`, with the origin that its seal proves.
    ///
    /// # Errors
    /// Returns [`RefuseNoteError`] if the seal does not prove that the event came from a platform's account, or if the note
    /// is that of another event.
    pub fn admit_event(&self, key: &str, trust: &TrustKeys) -> Result<Event, RefuseNoteError> {
        let event = admit_message(&self.message, trust)?;
        if fetch_key(&event) != key {
            return Err(RefuseNoteError::Key(event.id.to_string()));
        }
        Ok(event)
    }
}

/// An admitted note.
#[derive(Debug, Clone)]
pub struct NotedEvent {
    /// Key of the note.
    pub key: String,
    /// The note.
    pub note: FetchNote,
    /// The event, as its platform's account brought it.
    pub event: Event,
    /// Revision of the note.
    pub revision: u64,
}

/// The notes of all accounts. Clones share the connection.
#[derive(Debug, Clone)]
pub struct FetchNotes {
    bus: Bus,
    clock: SharedClock,
    notes: Kv<FetchNote>,
}

impl FetchNotes {
    /// Returns the notes on `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock) -> Self {
        Self {
            clock,
            bus: bus.clone(),
            notes: bus.kv(buckets::FETCHES),
        }
    }

    fn stream() -> String {
        format!("KV_{}", buckets::FETCHES)
    }

    fn subject(key: &str) -> String {
        format!("$KV.{}.{key}", buckets::FETCHES)
    }

    /// Notes `event`, in place of an earlier version. Waits while a keeper publishes that one: its event comes before the
    /// one of `event`.
    ///
    /// # Errors
    /// Returns [`WriteNoteError`], which says whether trying again may help.
    pub async fn write(&self, event: &Event) -> Result<(), WriteNoteError> {
        let note = FetchNote::of_event(event, &self.bus)?;
        self.replace(&fetch_key(event), Some(&note)).await
    }

    /// Makes the step about its note that `message` asks for.
    ///
    /// # Errors
    /// Returns [`WriteNoteError`], which says whether trying again may help.
    pub async fn settle(&self, message: &EncodedEvent) -> Result<(), WriteNoteError> {
        let key = token(message.id.as_str());
        let note = FetchNote::of_message(message.clone());
        match message.note {
            NoteStep::Settled => Ok(()),
            NoteStep::Add => match self.notes.create(&key, &note).await {
                // A later version is noted, or this one already.
                Ok(_) | Err(CasError::Conflict { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            },
            NoteStep::Replace => self.replace(&key, Some(&note)).await,
            NoteStep::Remove => self.replace(&key, None).await,
        }
    }

    /// Removes the note of an earlier version of `event`, if there is one. Waits as [`FetchNotes::write`] does.
    ///
    /// # Errors
    /// Returns [`WriteNoteError`] if the bucket cannot be asked.
    pub async fn remove_earlier(&self, event: &Event) -> Result<(), WriteNoteError> {
        self.replace(&fetch_key(event), None).await
    }

    /// Writes `note` under `key`, or removes what is there.
    async fn replace(&self, key: &str, note: Option<&FetchNote>) -> Result<(), WriteNoteError> {
        let began = SystemClock.monotonic();
        loop {
            let found = self.bus.last_on_subject(&Self::stream(), &Self::subject(key)).await?;
            let sequence = found.as_ref().map_or(0, |found| found.sequence);
            let found = found.filter(|found| !is_marker(&found.headers));

            let known = found.as_ref().and_then(|found| found.decode::<FetchNote>().ok());
            let is_claimed = known.and_then(|known| known.claimed_until);
            let is_claimed = is_claimed.is_some_and(|until| self.clock.now() < until);
            // Another host's clock may be ahead.
            if is_claimed && SystemClock.monotonic().saturating_duration_since(began) < CLAIM_LASTS {
                pause(CLAIM_LOOK_EVERY).await;
                continue;
            }

            let written = match (note, found) {
                (None, None) => return Ok(()),
                (None, Some(_)) => self.remove(key, sequence).await.map_err(CasError::from),
                (Some(note), _) => self.notes.update(key, note, sequence).await.map(drop),
            };
            match written {
                // A keeper has claimed it in between, or is through with it.
                Err(CasError::Conflict { .. } | CasError::Publish(PublishError::WrongLastSequence { .. })) => {}
                written => return Ok(written?),
            }
        }
    }

    /// Returns the keys of all notes.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be asked.
    pub async fn list_keys(&self) -> Result<Vec<String>, ReadStreamError> {
        let prefix = Self::subject("");
        let subjects = self.bus.list_subjects(&Self::stream(), &format!("{prefix}>")).await?;
        let keys = subjects.into_keys();
        Ok(keys
            .filter_map(|subject| subject.strip_prefix(&prefix).map(str::to_owned))
            .collect())
    }

    /// Returns the event that is noted under `key`; `None` if there is none. A note that is not admitted is counted and
    /// removed.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be asked.
    pub async fn read(&self, key: &str) -> Result<Option<NotedEvent>, ReadStreamError> {
        let stream = Self::stream();
        let stored = self.bus.last_on_subject(&stream, &Self::subject(key)).await?;
        let Some(stored) = stored.filter(|stored| !is_marker(&stored.headers)) else {
            return Ok(None);
        };
        let read = stored.decode().map_err(RefuseNoteError::from);
        let read = read.and_then(|note: FetchNote| Ok((note.admit_event(key, self.bus.trust())?, note)));
        match read {
            Ok((event, note)) => Ok(Some(NotedEvent {
                key: key.to_owned(),
                note,
                event,
                revision: stored.sequence,
            })),
            Err(error) => {
                tracing::error!(key, %error, "note of files refused");
                metrics::counter!("nexus_attachment_notes_refused_total", "reason" => error.reason()).increment(1);
                if let Err(error) = self.remove(key, stored.sequence).await {
                    tracing::debug!(key, %error, "failed to remove a note of files");
                }
                Ok(None)
            }
        }
    }

    /// Claims `noted` for [`CLAIM_LASTS`] by writing it again: fails if the note is gone or another one by now. Returns the
    /// new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if another version of the item is there.
    pub async fn claim(&self, noted: &NotedEvent) -> Result<u64, CasError> {
        let note = FetchNote {
            claimed_until: Some(self.clock.now().plus(millis_of(CLAIM_LASTS))),
            ..noted.note.clone()
        };
        self.notes.update(&noted.key, &note, noted.revision).await
    }

    /// Ends the claim of `noted`, which has the revision `claimed`. Returns the new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if another version of the item is there.
    pub async fn release(&self, noted: &NotedEvent, claimed: u64) -> Result<u64, CasError> {
        let note = FetchNote {
            claimed_until: None,
            ..noted.note.clone()
        };
        self.notes.update(&noted.key, &note, claimed).await
    }

    /// Removes the note of `key`, if it has `revision` still.
    ///
    /// # Errors
    /// Returns [`PublishError`] if another note is there, or the server refuses.
    pub async fn remove(&self, key: &str, revision: u64) -> Result<(), PublishError> {
        let headers: Headers = [(OPERATION, "PURGE"), ("Nats-Rollup", "sub")].into_iter().collect();
        let marker = OutgoingMessage::raw(Self::subject(key), headers, Bytes::new());
        let marker = marker.expect_last(revision).ttl(MARKER_KEPT);
        self.bus.publish(marker).await.map(drop)
    }
}

/// Returns the event in `message`, with the origin that its seal proves.
///
/// # Errors
/// Returns [`RefuseNoteError`] if the seal does not prove that the event came from a platform's account.
pub fn admit_message(message: &EncodedEvent, trust: &TrustKeys) -> Result<Event, RefuseNoteError> {
    let message = message.to_outgoing();
    let event = trust.read(&stored_subject(&message.subject), &message.headers, &message.payload)?;
    match event.origin {
        EventOrigin::Verified { .. } => Ok(event),
        EventOrigin::Token { .. } | EventOrigin::Edge { .. } | EventOrigin::System | EventOrigin::Open => {
            Err(RefuseNoteError::Origin(event.origin))
        }
    }
}

/// Returns the subject under which `EVENTS` stores what is published to `subject`. Its partition is any: readers ignore it.
fn stored_subject(subject: &str) -> String {
    let conversation = subject.strip_prefix("nexus.event.").unwrap_or_default();
    format!("nexus.ev.0.{conversation}")
}

/// Returns whether `headers` are those of a message that says that a key is gone.
fn is_marker(headers: &Headers) -> bool {
    headers.get(OPERATION).is_some() || headers.get("Nats-Marker-Reason").is_some()
}

/// Returns the key of `event` in KV `fetches`. Later versions of an item have the same key.
fn fetch_key(event: &Event) -> String {
    token(event.id.as_str())
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;
    use shared::testing::trust;

    use super::*;

    fn event(origin: EventOrigin) -> Event {
        let id = EventId::parse("telegram:main/5/1").expect("an id");
        let mut event = Event::new(id, "telegram", "5", UnixMillis(1));
        event.origin = origin;
        event
    }

    fn note(event: &Event, trust: &TrustKeys) -> FetchNote {
        let message = EncodedEvent::encode_event(event, trust, &TraceCarrier::default(), usize::MAX);
        FetchNote::of_message(message.expect("encoded"))
    }

    #[test]
    fn only_the_sealed_event_of_an_account_is_admitted_under_its_key() {
        let own = EventOrigin::Verified {
            account: "telegram/main".to_owned(),
        };
        let (event, key) = (event(own), fetch_key(&event(EventOrigin::Open)));
        let sound = note(&event, &trust());
        assert_eq!(sound.admit_event(&key, &trust()).expect("admitted"), event);

        let reason = |note: &FetchNote, key: &str| note.admit_event(key, &trust()).expect_err("refused").reason();
        assert_eq!(reason(&sound, "other"), "key");
        assert_eq!(reason(&note(&event, &TrustKeys::default()), &key), "unsealed");
        let mut altered = sound.clone();
        altered.message.payload = note(
            &Event {
                content: "as you wish".to_owned(),
                ..event
            },
            &trust(),
        )
        .message
        .payload;
        assert_eq!(reason(&altered, &key), "unsealed");
    }

    #[test]
    fn events_of_others_than_accounts_are_not_noted() {
        let (event, trust) = (event(EventOrigin::System), trust());
        let refused = note(&event, &trust).admit_event(&fetch_key(&event), &trust);
        assert_eq!(refused.expect_err("refused").reason(), "origin");
    }
}
