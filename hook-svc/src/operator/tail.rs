//! `nexus.svc.events.tail`: messages of the streams as they come.
//!
//! Nothing is kept between two requests. A request reads at most [`PAGE`] messages and [`PAGE_BYTES`] of each stream, at
//! most ten times a second, and at most [`AT_ONCE`] requests are served at once; a reader that falls behind is brought
//! near the end, and told how many messages it missed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, ReadStreamError, ServiceSpec, StoredMessage};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::wire::envelope::MAX_PAYLOAD_BYTES;
use shared::wire::operator::tail::{
    DEFAULT_STREAMS, MAX_TAIL_TEXT, MAX_TAIL_WAIT_MS, MAX_TAILED, MAX_TAILED_PAYLOAD, TAILED_STREAMS, TailCursor,
    TailMessages, TailPage, TailedMessage,
};
use shared::wire::subject;
use shared::wire::topology::streams;
use tokio::sync::Semaphore;

use super::tail_page::{Lane, first_cursor, follow_end, make_page};
use super::tailed_message::{is_of_hook, tailed_message};

/// Maximum number of requests that are served at once.
const AT_ONCE: usize = 16;
/// Maximum number of messages that are read of a stream at once.
const PAGE: usize = 100;
/// Size of the messages of a stream from which no more are read at once, in bytes.
const PAGE_BYTES: usize = 2 << 20;
/// Maximum size of a page, in bytes.
const ANSWER_BYTES: usize = 1 << 20;
/// Interval between two readings of the streams for one reader.
const EVERY: Duration = Duration::from_millis(100);

/// Code and text of a rejected request.
type Refusal = (usize, String);

/// A stream that is read, with the filter for its subjects.
struct TailedStream {
    name: &'static str,
    filter: String,
}

/// A request, checked.
struct Tail {
    bus: Bus,
    streams: Vec<TailedStream>,
    question: TailMessages,
}

/// Returns the service over `bus`.
pub(super) fn service_spec(bus: &Bus, clock: &SharedClock) -> ServiceSpec {
    let (bus, clock, slots) = (bus.clone(), clock.clone(), Arc::new(Semaphore::new(AT_ONCE)));
    ServiceSpec::new("events", "messages as they come").endpoint("tail", move |question: TailMessages| {
        let (bus, clock, slots) = (bus.clone(), clock.clone(), Arc::clone(&slots));
        async move {
            let Ok(_slot) = slots.try_acquire() else {
                return Err((429, format!("{AT_ONCE} readers tail on this replica already")));
            };
            let tail = Tail {
                streams: chosen_streams(&question)?,
                bus,
                question,
            };
            tail.serve(&clock).await
        }
    })
}

/// Returns the streams that `question` names.
fn chosen_streams(question: &TailMessages) -> Result<Vec<TailedStream>, Refusal> {
    let wrong = |text: String| Err((400, text));
    if question.text.as_ref().is_some_and(|text| text.len() > MAX_TAIL_TEXT) {
        return wrong(format!("text: at most {MAX_TAIL_TEXT} bytes are allowed"));
    }

    let mut chosen: Vec<TailedStream> = Vec::new();
    let named: Vec<&str> = match question.streams.as_slice() {
        [] => DEFAULT_STREAMS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    for name in named {
        let Some(name) = TAILED_STREAMS
            .into_iter()
            .find(|known| known.eq_ignore_ascii_case(name))
        else {
            let known = TAILED_STREAMS.join(", ").to_lowercase();
            return wrong(format!("no stream `{name}`: one of {known}"));
        };
        let filter = match (&question.session, name) {
            (None, _) => ">".to_owned(),
            (Some(session), streams::LEDGER) => subject::ledger(session),
            (Some(session), streams::DISPATCHES) => subject::dispatch(session),
            (Some(_), _) => return wrong(format!("session: `{name}` has no messages of sessions")),
        };
        if question.hook.is_some() && name != streams::INVOCATIONS {
            return wrong(format!("hook: `{name}` has no outcomes of hooks"));
        }
        if chosen.iter().all(|known| known.name != name) {
            chosen.push(TailedStream { name, filter });
        }
    }

    Ok(chosen)
}

impl Tail {
    /// Returns the next page, once there is a message for it, or after the wait.
    async fn serve(self, clock: &SharedClock) -> Result<TailPage, Refusal> {
        let wait = Duration::from_millis(self.question.wait_ms.min(MAX_TAIL_WAIT_MS));
        let until = clock.monotonic() + wait;
        let mut cursors = self.question.cursors.clone();
        let mut dropped = 0;
        let is_begun = !cursors.is_empty();

        loop {
            // What was there when the tail began is read as fast as its reader asks.
            let catches_up = !is_begun || cursors.values().any(|cursor| cursor.next <= cursor.whole_until);
            if !catches_up {
                pause(EVERY).await;
            }

            let page = self.read(&cursors).await.map_err(|error| {
                tracing::warn!(error = describe_error(&error), "request to tail streams failed");
                (503, error.to_string())
            })?;
            dropped += page.dropped;
            if !page.messages.is_empty() || clock.monotonic() >= until {
                return Ok(TailPage { dropped, ..page });
            }
            cursors = page.cursors;
        }
    }

    /// Reads one page.
    async fn read(&self, cursors: &BTreeMap<String, TailCursor>) -> Result<TailPage, ReadStreamError> {
        let (mut lanes, mut dropped) = (Vec::new(), 0);
        for stream in &self.streams {
            let last = self.bus.stream_state(stream.name).await?.last;
            let known = cursors.get(stream.name).copied();
            let cursor = known.unwrap_or_else(|| first_cursor(last, self.question.last));
            let is_whole = self.question.whole || self.question.session.is_some();
            let (cursor, missed) = follow_end(cursor, last, is_whole);
            dropped += missed;

            let read = self.read_stream(stream, cursor.next).await?;
            lanes.push(Lane {
                cursor,
                first: read.messages.len(),
                has_more: read.has_more,
                read: read.messages,
            });
        }

        if lanes.iter().any(|lane| lane.first > 0) {
            for (stream, lane) in self.streams.iter().zip(&mut lanes).filter(|(_, lane)| !lane.has_more) {
                let next = lane.read.last().map_or(lane.cursor.next, |(sequence, ..)| sequence + 1);
                let again = self.read_stream(stream, next).await?;
                lane.read.extend(again.messages);
                lane.has_more = again.has_more;
            }
        }

        Ok(self.page_of(lanes, dropped))
    }

    /// Returns the page that `lanes` make.
    fn page_of(&self, lanes: Vec<Lane<Option<TailedMessage>>>, dropped: u64) -> TailPage {
        let most = match self.question.limit {
            0 => MAX_TAILED,
            limit => limit.min(MAX_TAILED),
        };
        let (mut count, mut bytes, room) = (0, 0, self.room());
        let (page, cursors) = make_page(lanes, |message| {
            let has_room = count < most && bytes < room;
            count += usize::from(message.is_some());
            bytes += message.as_ref().map_or(0, size_of);
            has_room
        });

        let names = self.streams.iter().map(|stream| stream.name.to_owned());
        TailPage {
            messages: page.into_iter().flatten().collect(),
            cursors: names.zip(cursors).collect(),
            dropped,
        }
    }

    /// Returns the size of a page from which no more messages are added, in bytes: with the last one it fits into what the
    /// server passes on.
    fn room(&self) -> usize {
        ANSWER_BYTES.min(self.bus.max_payload() / 3)
    }

    /// Returns `stored`, a message of the stream `name`, if it is asked for.
    fn shown(&self, name: &str, stored: &StoredMessage) -> Option<TailedMessage> {
        if self
            .question
            .hook
            .as_ref()
            .is_some_and(|hook| !is_of_hook(stored, hook))
        {
            return None;
        }
        // A reader that wants everything gets it whole, if the server passes it on; others see that it is large.
        let most = match self.question.whole {
            true => MAX_PAYLOAD_BYTES.min(self.bus.max_payload() / 2),
            false => MAX_TAILED_PAYLOAD,
        };
        let message = tailed_message(name, stored, most);
        let text = self.question.text.as_deref().unwrap_or_default();
        let is_shown = [&message.id, &message.text, &message.subject]
            .iter()
            .any(|part| part.contains(text));
        is_shown.then_some(message)
    }

    /// Reads messages of `stream` from the sequence `next` on.
    async fn read_stream(&self, stream: &TailedStream, next: u64) -> Result<ReadStream, ReadStreamError> {
        let read = self
            .bus
            .read_history_within(stream.name, &stream.filter, next, PAGE, PAGE_BYTES)
            .await?;
        let bytes: usize = read.iter().map(|stored| stored.payload.len()).sum();
        let has_more = read.len() >= PAGE || bytes >= PAGE_BYTES / 2;
        let messages = read
            .iter()
            .map(|stored| (stored.sequence, stored.stored_at_ns, self.shown(stream.name, stored)));
        Ok(ReadStream {
            messages: messages.collect(),
            has_more,
        })
    }
}

/// Messages of one stream, with sequence and time; none in the place of one that is not asked for.
struct ReadStream {
    messages: Vec<(u64, i64, Option<TailedMessage>)>,
    /// Whether there may be more behind them.
    has_more: bool,
}

/// Returns the approximate size of `message` in an answer, in bytes.
fn size_of(message: &TailedMessage) -> usize {
    let payload = message
        .payload
        .as_ref()
        .and_then(|payload| serde_json::to_vec(payload).ok());
    payload.map_or(0, |payload| payload.len()) + message.text.len() + message.subject.len() + 256
}
