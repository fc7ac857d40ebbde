//! Partial answers, as they come: on the core subject of the session, and on that of the open pages of a web chat.
//!
//! A platform's accounts can show the answer too ([`AnswerPreview`]): they get its whole beginning, less often.
//!
//! Nothing of them is stored, and the reply has the whole text for a reader that misses a piece. Pieces are therefore
//! joined while the bus is busy, and never waited for. Source: `docs/design/sessions.md` §6.5 (Streaming).

mod redactor;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::{DEFAULT_ACCOUNT, EventId};
use shared::model::live::{AnswerPreview, WritingBeat};
use shared::model::reply::SendDecision;
use shared::model::session::SessionRef;
use shared::platform::accounts::is_platform;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::subject;
use tokio::sync::Notify;
use ulid::Ulid;

use super::port::TurnOrigin;
use redactor::StreamRedactor;

/// Interval between two messages of one answer: text is joined meanwhile.
const JOIN_FOR: Duration = Duration::from_millis(40);
/// Interval between two beats with the beginning of an answer.
const PREVIEW_EVERY: Duration = Duration::from_secs(1);
/// Maximum length of the beginning that is shown, in bytes: no platform shows more in a message.
const MAX_PREVIEW_BYTES: usize = 8 * 1_024;
/// Channel whose pages show partial answers.
const WEBCHAT: &str = "webchat";

/// A piece of an answer that is being made.
#[derive(Debug, Serialize)]
struct Piece<'a> {
    /// Id of the turn.
    turn: Ulid,
    /// Thread of the conversation that the answer goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    /// Number of the model call in the turn.
    step: u32,
    /// Number of the piece in this attempt, from 0: a second piece 0 of the same step replaces the answer so far.
    seq: u64,
    /// Text since the piece before.
    text: &'a str,
    /// Whether the model call is over, with success or not.
    done: bool,
}

/// Adapter of the events of timers.
const TIMER: &str = "timer";

/// Part of the ids of the events of reactions, behind the id of their message.
const REACTION: &str = "/reaction";

/// Returns whether no sender waits for the answer to `event`.
#[must_use]
pub fn is_silent(event: &EventId) -> bool {
    event.adapter() == TIMER || event.as_str().contains(REACTION)
}

/// Returns whether a platform may show that a turn with `origin` runs: a sender waits there, and the turn's reply is sent.
#[must_use]
pub fn is_shown(origin: &TurnOrigin) -> bool {
    let is_denied = origin.send == Some(SendDecision::Deny);
    !is_denied && is_platform(&origin.delivery.channel) && !is_silent(&origin.causation.event)
}

#[derive(Debug, Default)]
struct Text {
    /// Text that is not sent yet.
    said: String,
    veil: StreamRedactor,
    done: bool,
}

#[derive(Debug, Default)]
struct Said {
    text: Mutex<Text>,
    changed: Notify,
}

impl Said {
    fn change_text(&self, change: impl FnOnce(&mut Text)) {
        change(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}

/// One answer on its way; dropping it ends the answer.
#[derive(Debug)]
pub struct LiveAnswer {
    said: Arc<Said>,
}

impl LiveAnswer {
    /// Begins to publish the pieces of model call `step` of `turn`.
    #[must_use]
    pub fn begin_call(bus: Bus, session: &SessionRef, origin: &TurnOrigin, turn: Ulid, step: u32) -> Self {
        let delivery = &origin.delivery;
        let mut subjects = vec![subject::stream(session)];
        if delivery.channel == WEBCHAT
            && let Some(peer) = &delivery.peer_id
        {
            let account = delivery.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
            subjects.push(subject::webchat(account, peer));
        }

        let said = Arc::new(Said::default());
        let answer = Answer {
            turn,
            thread: delivery.thread_id.clone(),
            step,
            preview: PreviewFeed::of_turn(session, origin, turn),
        };
        tokio::spawn(publish_texts(bus, subjects, answer, Arc::clone(&said)));

        Self { said }
    }

    /// Adds `text` of the model.
    pub fn push_text(&self, text: &str) {
        self.said.change_text(|state| {
            let shown = state.veil.filter_text(text);
            state.said.push_str(&shown);
        });
    }
}

impl Drop for LiveAnswer {
    fn drop(&mut self) {
        self.said.change_text(|state| {
            let rest = state.veil.take_rest();
            state.said.push_str(&rest);
            state.done = true;
        });
    }
}

/// The answer that the pieces belong to.
struct Answer {
    turn: Ulid,
    thread: Option<String>,
    step: u32,
    /// The beats that platforms show, if the answer goes to one.
    preview: Option<PreviewFeed>,
}

/// The beginning of an answer, as a platform's accounts show it.
#[derive(Debug)]
struct PreviewFeed {
    subject: String,
    beat: WritingBeat,
    /// Time of the last beat with a text, and the text of the answer then.
    sent: Option<(Instant, usize)>,
}

impl PreviewFeed {
    /// Returns the feed of `turn` of `session`; `None` if no platform shows its answer while it is made.
    fn of_turn(session: &SessionRef, origin: &TurnOrigin, turn: Ulid) -> Option<Self> {
        if !is_shown(origin) {
            return None;
        }
        let preview = AnswerPreview {
            session: session.clone(),
            causation: origin.causation.clone(),
            text: String::new(),
        };
        Some(Self {
            subject: subject::live(&origin.delivery),
            beat: WritingBeat {
                turn,
                target: origin.delivery.clone(),
                preview: Some(Box::new(preview)),
                is_over: false,
            },
            sent: None,
        })
    }

    /// Adds `text`; returns the beat to send at `now`, if it is time for one and there is something to show.
    fn take_beat(&mut self, text: &str, now: Instant) -> Option<bytes::Bytes> {
        let shown = self.beat.preview.as_deref_mut()?;
        let room = MAX_PREVIEW_BYTES.saturating_sub(shown.text.len());
        shown.text.push_str(&text[..text.floor_char_boundary(room)]);

        let length = shown.text.len();
        let is_due = self
            .sent
            .is_none_or(|(at, sent)| length > sent && now.saturating_duration_since(at) >= PREVIEW_EVERY);
        if shown.text.trim().is_empty() || !is_due {
            return None;
        }
        self.sent = Some((now, length));
        serde_json::to_vec(&self.beat).ok().map(bytes::Bytes::from)
    }
}

async fn publish_texts(bus: Bus, subjects: Vec<String>, mut answer: Answer, said: Arc<Said>) {
    let headers: Headers = [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
        .into_iter()
        .collect();
    let mut seq = 0;
    loop {
        said.changed.notified().await;
        // The lock is held only for the exchange: the model's task must not wait for the bus.
        let (text, done) = {
            let mut held = said.text.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut held.said), held.done)
        };

        if let Some(feed) = &mut answer.preview
            && let Some(beat) = feed.take_beat(&text, SystemClock.monotonic())
        {
            bus.core_publish(&feed.subject, &headers, beat).await;
        }

        // An answer without any piece needs no end.
        if !text.is_empty() || (done && seq > 0) {
            let piece = Piece {
                turn: answer.turn,
                thread: answer.thread.as_deref(),
                step: answer.step,
                seq,
                text: &text,
                done,
            };

            let payload = bytes::Bytes::from(serde_json::to_vec(&piece).unwrap_or_default());
            for subject in &subjects {
                bus.core_publish(subject, &headers, payload.clone()).await;
            }

            seq += 1;
        }

        if done {
            return;
        }

        // Pieces that come during the pause are joined, so that a fast model does not flood the bus.
        pause(JOIN_FOR).await;
    }
}

#[cfg(test)]
mod tests {
    use shared::model::dispatch::{DeliveryContext, DispatchCause};

    use super::*;
    use crate::agent::port::TurnFiles;

    #[test]
    fn the_beginning_of_an_answer_is_shown_once_a_second_if_there_is_more_of_it() {
        let origin = TurnOrigin {
            delivery: DeliveryContext {
                channel: "telegram".to_owned(),
                peer_id: Some("5".to_owned()),
                ..DeliveryContext::default()
            },
            causation: DispatchCause {
                event: EventId::parse("telegram:bot/5/7").expect("an id"),
                hops: 0,
            },
            works_for: Vec::new(),
            files: TurnFiles::default(),
            send: None,
        };
        let session = SessionRef {
            persona: "a".to_owned(),
            session: "s".to_owned(),
        };
        let mut feed = PreviewFeed::of_turn(&session, &origin, Ulid::nil()).expect("a platform");
        let begun = SystemClock.monotonic();
        let mut take = |text: &str, after_ms: u64| {
            let beat = feed.take_beat(text, begun + Duration::from_millis(after_ms))?;
            let beat: WritingBeat = serde_json::from_slice(&beat).expect("a beat");
            beat.preview.map(|preview| preview.text)
        };
        assert_eq!(take(" ", 0), None, "nothing to show");
        assert_eq!(take("one", 10), Some(" one".to_owned()));
        assert_eq!(take(" two", 1_009), None);
        assert_eq!(take("", 1_010), Some(" one two".to_owned()));
        assert_eq!(take("", 9_000), None, "nothing new");
        let long = take(&"ü".repeat(MAX_PREVIEW_BYTES), 9_000).expect("more");
        assert!(long.len() <= MAX_PREVIEW_BYTES);

        let mut silent = origin.clone();
        silent.causation.event = EventId::parse("timer:x/1").expect("an id");
        assert!(PreviewFeed::of_turn(&session, &silent, Ulid::nil()).is_none());
    }

    #[test]
    fn timers_and_reactions_are_silent() {
        for (id, silent) in [
            ("telegram:bot/-100/7", false),
            ("telegram:bot/-100/7/press/1", false),
            ("telegram:bot/-100/7/reaction/5/1-ab", true),
            ("telegram:bot/-100/7/reactions/1-ab", true),
            ("discord:bot/20/42/reaction/5/ab", true),
            ("timer:x/1", true),
        ] {
            assert_eq!(is_silent(&EventId::parse(id).expect("an id")), silent, "{id}");
        }
    }
}
