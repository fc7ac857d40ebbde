//! Which messages are stored as parts of a merged event (KV `merges`): a change of one of them is a change of that event, and one
//! that is read again, by a run whose decisions are lost or from a history, is that event again and none of its own.
//!
//! An event is noted once it is stored, so that a note never makes a message be left out that is in no event. The note is the
//! event's sealed message without its payloads, and is admitted as a message of `EVENTS` is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use shared::bus::{Bus, CasError, Kv, ReadStreamError};
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::event::{Event, EventDirection, EventId};
use shared::model::time::UnixMillis;
use shared::wire::envelope::{MAX_PAYLOAD_BYTES, WireMessage};
use shared::wire::headers::TraceCarrier;
use shared::wire::subject::token;
use shared::wire::topology::buckets;

use super::event_store::{SourceFenced, TRY_AGAIN_AFTER};
use super::sink::SourceSink;
use crate::attachments::note::admit_message;
use crate::encoded_event::EncodedEvent;
use crate::source::merge::{MergedTexts, as_read_again, change_merged};
use crate::source::raw_payload::RAW;

/// Size of a note beside its event, in bytes, rounded up.
const OVERHEAD_BYTES: usize = 8 * 1024;
/// Time for which a merged event is known.
const KEPT: Duration = Duration::from_hours(30 * 24);
/// Age of a text from which it may have been stored before, in milliseconds.
const LATE_MS: i64 = 60_000;
/// Maximum number of notes that are read or written at once.
const AT_ONCE: usize = 16;

/// The note about a message of a merged event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeNote {
    /// Id of the event that it is part of.
    of: String,
    /// The event as it is now, under its own id alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<EncodedEvent>,
}

impl WireMessage for MergeNote {
    const SCHEMA: &'static str = "merge_note";
    const MAX_BYTES: usize = MAX_PAYLOAD_BYTES + OVERHEAD_BYTES;
}

/// The merged events of all accounts.
#[derive(Debug)]
pub struct MergeNotes {
    bus: Bus,
    notes: Kv<MergeNote>,
}

impl MergeNotes {
    /// Returns the notes on `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            bus: bus.clone(),
            notes: bus.kv(buckets::MERGES),
        }
    }

    async fn find(&self, id: &str) -> Result<Option<MergeNote>, ReadStreamError> {
        Ok(self.notes.find(&token(id)).await?.0)
    }

    /// Returns the merged event that `part` is about; `None` if it is about none, or another party brought that one.
    async fn find_whole(&self, part: &Event) -> Result<Option<Event>, ReadStreamError> {
        let Some(known) = self.find(part.id.as_str()).await? else {
            return Ok(None);
        };
        let of = known.of.clone();
        let note = if known.message.is_some() {
            Some(known)
        } else {
            self.find(&of).await?
        };
        let Some(message) = note.and_then(|note| note.message) else {
            return Ok(None);
        };

        match admit_message(&message, self.bus.trust()) {
            Ok(whole) => {
                let is_same = whole.id.as_str() == of
                    && whole.origin == part.origin
                    && whole.conversation() == part.conversation();
                // The seal vouches for the event, not for the note.
                let texts = MergedTexts::from_event(&whole);
                let has_part = texts.is_some_and(|texts| texts.ids().any(|id| id == part.id.as_str()));
                Ok((is_same && has_part).then_some(whole))
            }
            Err(error) => {
                tracing::error!(event_id = of, %error, "note of a merged event refused");
                Ok(None)
            }
        }
    }

    /// Makes of each edit and deletion among `events` that is about a part of a merged event the change of that event. After an
    /// error the same events may be given again.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be asked.
    pub async fn follow_changes(&self, events: &mut [Event]) -> Result<(), ReadStreamError> {
        // Events that are merged or changed in the same call are not noted yet.
        let (mut latest, mut changes) = (Vec::<Event>::new(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            if !is_change(event) {
                latest.extend(is_merged(event).then(|| event.clone()));
                continue;
            }
            let beside = latest.iter().rev().find_map(|whole| change_merged(whole, event));
            let changed = match beside {
                Some(changed) => Some(changed),
                None => {
                    let whole = self.find_whole(event).await?;
                    whole.and_then(|whole| change_merged(&whole, event))
                }
            };
            if let Some(changed) = changed {
                latest.push(changed.clone());
                changes.push((index, changed));
            }
        }

        for (index, changed) in changes {
            if let Some(event) = events.get_mut(index) {
                *event = changed;
            }
        }
        Ok(())
    }

    /// Returns the events that those of `texts` are parts of, by the texts' ids.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be asked.
    pub async fn find_wholes(&self, texts: &[&Event]) -> Result<BTreeMap<EventId, Event>, ReadStreamError> {
        let mut wholes = BTreeMap::new();
        for some in texts.chunks(AT_ONCE) {
            let found = try_join_all(some.iter().map(|text| self.find_whole(text))).await?;
            let found = some.iter().zip(found);
            wholes.extend(found.filter_map(|(text, whole)| Some((text.id.clone(), whole?))));
        }
        Ok(wholes)
    }

    /// Notes those of `events`, which are stored, that were made of several.
    ///
    /// # Errors
    /// Returns [`CasError`] if a note cannot be written.
    pub async fn note_stored(&self, events: &[Event]) -> Result<(), CasError> {
        for event in events {
            let Some(texts) = MergedTexts::from_event(event) else {
                continue;
            };
            let mut bare = event.clone();
            bare.metadata.remove(RAW);
            let (trust, max) = (self.bus.trust(), self.bus.max_payload());
            // One that cannot be encoded is not stored either.
            let Ok(message) = EncodedEvent::encode_event(&bare, trust, &TraceCarrier::default(), max) else {
                continue;
            };
            let of = event.id.to_string();
            let note = MergeNote {
                of: of.clone(),
                message: None,
            };
            // The event's own note comes last: without it the others say nothing.
            let parts: Vec<String> = texts.ids().filter(|part| *part != of).map(token).collect();
            for some in parts.chunks(AT_ONCE) {
                try_join_all(some.iter().map(|part| self.notes.put_ttl(part, &note, KEPT))).await?;
            }
            self.note_whole(event, message).await?;
        }
        Ok(())
    }

    /// Notes the merged event `whole`, whose message is `message`, unless a later change of it is noted: by a replica that has
    /// taken the account over, or before its texts were read again.
    async fn note_whole(&self, whole: &Event, message: EncodedEvent) -> Result<(), CasError> {
        let key = token(whole.id.as_str());
        let (known, revision) = self.notes.find(&key).await?;
        let known = known.and_then(|note| admit_message(&note.message?, self.bus.trust()).ok());
        if known.is_some_and(|known| known.edited_at > whole.edited_at) {
            return Ok(());
        }

        let note = MergeNote {
            of: whole.id.to_string(),
            message: Some(message),
        };
        self.notes.update_ttl(&key, &note, revision, KEPT).await.map(drop)
    }
}

impl SourceSink {
    /// Does [`MergeNotes::follow_changes`] as often as it takes.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the account is no longer held before the notes can be read.
    pub(super) async fn follow_changes(&self, events: &mut [Event]) -> Result<(), SourceFenced> {
        let notes = MergeNotes::new(self.bus());
        while let Err(error) = notes.follow_changes(events).await {
            self.wait_noted(&describe_error(&error)).await?;
        }
        Ok(())
    }

    /// Puts the events that they are parts of in place of those of `events` that came late.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the account is no longer held before the notes can be read.
    pub(super) async fn replace_late_parts(&self, events: &mut Vec<Event>) -> Result<(), SourceFenced> {
        let notes = MergeNotes::new(self.bus());
        let wholes = loop {
            match notes.find_wholes(&late_texts(events, self.now())).await {
                Ok(wholes) => break wholes,
                Err(error) => self.wait_noted(&describe_error(&error)).await?,
            }
        };
        replace_parts(events, &wholes);
        Ok(())
    }

    /// Returns those of `events` that were made of several texts.
    pub(super) fn merged_among(events: &[Event]) -> Vec<Event> {
        events.iter().filter(|event| is_merged(event)).cloned().collect()
    }

    /// Notes `merged`, which are stored, as often as it takes.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the account is no longer held before that is done.
    pub(super) async fn note_merged(&self, merged: &[Event]) -> Result<(), SourceFenced> {
        let notes = MergeNotes::new(self.bus());
        while let Err(error) = notes.note_stored(merged).await {
            self.wait_noted(&describe_error(&error)).await?;
        }
        Ok(())
    }

    /// Waits before a note is read or written again, which failed with `error`.
    async fn wait_noted(&self, error: &str) -> Result<(), SourceFenced> {
        let (channel, account) = self.names();
        tracing::warn!(
            channel,
            account,
            error,
            "failed to read or write a note of a merged event; retrying"
        );
        if !self.is_held() {
            return Err(SourceFenced);
        }
        pause(TRY_AGAIN_AFTER).await;
        Ok(())
    }
}

/// Puts the events `wholes`, by the ids of their parts, in place of these parts among `events`, each once. They are stored already,
/// unless `EVENTS` was put back to an older state: then a text that was left out would be in no event.
pub fn replace_parts(events: &mut Vec<Event>, wholes: &BTreeMap<EventId, Event>) {
    let mut told = BTreeSet::new();
    for event in std::mem::take(events) {
        match wholes.get(&event.id) {
            Some(whole) if told.insert(whole.id.clone()) => events.extend(as_read_again(whole.clone(), &event)),
            Some(_) => {}
            None => events.push(event),
        }
    }
}

/// Returns whether `event` is an edit or a deletion of a message.
fn is_change(event: &Event) -> bool {
    match event.direction {
        EventDirection::Deleted => true,
        EventDirection::Updated => event.edited_at.is_some(),
        EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => false,
    }
}

/// Returns whether `event` was made of several texts.
fn is_merged(event: &Event) -> bool {
    MergedTexts::from_event(event).is_some()
}

/// Returns those of `events` that are texts of their own.
#[must_use]
pub fn single_texts(events: &[Event]) -> Vec<&Event> {
    let is_text = |event: &&Event| match event.direction {
        EventDirection::Received | EventDirection::Observed => event.content_types == ["text"] && !is_merged(event),
        EventDirection::Sent | EventDirection::Created | EventDirection::Updated | EventDirection::Deleted => false,
    };
    events.iter().filter(is_text).collect()
}

/// Returns those of `events`, which are stored at `now`, that are texts of their own and come late, so that they may have been
/// stored before. A posted text may have waited since it was received, or come out of a spool or a restored bucket once more.
fn late_texts(events: &[Event], now: UnixMillis) -> Vec<&Event> {
    let mut texts = single_texts(events);
    texts.retain(|event| event.received_at.max(now).since(event.timestamp) > LATE_MS);
    texts
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::MERGED_TEXTS;

    use super::*;

    fn text(number: i64, content: &str) -> Event {
        let id = EventId::parse(format!("slack:main/D1/{number}")).expect("an id");
        let mut event = Event::new(id, "slack", "D1", UnixMillis(number));
        event.content = content.to_owned();
        event.content_types = vec!["text".to_owned()];
        event
    }

    #[test]
    fn parts_that_are_read_again_are_their_event_once() {
        let mut whole = text(1, "one\ntwo");
        let texts = [1, 2].map(|number| json!({"id": format!("slack:main/D1/{number}"), "bytes": 3}));
        whole.metadata.insert(MERGED_TEXTS.to_owned(), json!(texts));
        let parts = [text(1, "one"), text(2, "two")];
        let wholes: BTreeMap<_, _> = parts.iter().map(|part| (part.id.clone(), whole.clone())).collect();

        let mut events = vec![text(0, "zero"), parts[0].clone(), parts[1].clone(), text(3, "three")];
        replace_parts(&mut events, &wholes);
        let contents: Vec<&str> = events.iter().map(|event| event.content.as_str()).collect();
        assert_eq!(contents, ["zero", "one\ntwo", "three"]);
    }

    #[test]
    fn a_text_is_late_that_is_stored_long_after_it_was_written() {
        let events = [text(0, "zero"), text(60_000, "one")];
        let late = |now: i64| late_texts(&events, UnixMillis(now)).len();
        assert_eq!((late(60_000), late(60_001), late(120_001)), (0, 1, 2));
    }
}
