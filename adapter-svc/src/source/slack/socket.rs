//! The source that reads an app's payloads over a socket that it opens itself (Socket Mode).
//!
//! Source: <https://docs.slack.dev/apis/events-api/using-socket-mode>. A payload is acknowledged once its events are
//! durable; Slack sends the others again, on any connection of the app. One connection at a time: several would get the
//! payloads at random.
//!
//! With `debounce_ms` texts wait for those that follow, and so do their acknowledgements: for two seconds at most, because
//! Slack sends a payload again that is not acknowledged in three. They are not kept elsewhere meanwhile to be acknowledged at
//! once: a watermark that is lost must only let things be read again, and a replica that takes over must find all that was
//! acknowledged in the stream. At the end of a connection what waits is stored, because nothing more comes over it.

mod frame;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use shared::clock::{SharedClock, SharedIds, pause};
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::platform::slack::{MAX_DEBOUNCE_MS, SLACK, SlackAccount};
use shared::process::SecretValue;
use shared::wire::watermark::SourceWatermark;
use tokio_tungstenite::tungstenite::Message;

use self::frame::{SocketFrame, acknowledgement, unreadable_frame};
use super::begun_threads::BegunThreads;
use super::client::{WebCallError, identify_account, open_connection};
use super::handshake::{Socket, open_socket};
use super::normalize::payload_events;
use super::post_payload::note_refused;
use super::posted::PostedPayloads;
use super::privacy::unreadable_payload;
use super::threads::apply_policy;
use super::{REPEATED_MS, RefusePayloadError, SlackBot};
use crate::source::merge::{MergeDecision, MergeWaits, MessageMerger, ReadyEvent};
use crate::source::port::sink::SourcePosition;
use crate::source::port::{PutEventsError, Source, SourceEnd, SourceGap, SourceSink};
use crate::source::posts::late_looks::LateLooks;

/// Interval in which the connection is tried.
const PING_EVERY: Duration = Duration::from_secs(15);
/// Number of intervals without a frame after which the connection is given up: it may be dead without an error.
const MAX_SILENT: u32 = 4;
/// Time after which an account that an operator must look after is tried again.
const STOPPED_AGAIN: Duration = Duration::from_mins(5);
/// Life of a connection from which it counts as sound. Slack opens one connection a minute.
const SOUND_AFTER: Duration = Duration::from_mins(1);
/// Interval in which the watermark is written although nothing happens, in milliseconds.
const NOTE_EVERY_MS: i64 = 60_000;

/// An app whose payloads are read over a socket.
pub struct SlackSocketSource {
    name: String,
    account: SlackAccount,
    /// Token of the app, which opens connections.
    app_token: SecretValue,
    http: reqwest::Client,
    threads: BegunThreads,
    clock: SharedClock,
    ids: SharedIds,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for SlackSocketSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlackSocketSource({})", self.name)
    }
}

impl SlackSocketSource {
    /// Returns the source of the account `name`, which calls by `http`, opens connections with `app_token`, and knows `threads`.
    #[must_use]
    pub const fn new(
        name: String,
        account: SlackAccount,
        app_token: SecretValue,
        http: reqwest::Client,
        threads: BegunThreads,
        clock: SharedClock,
        ids: SharedIds,
    ) -> Self {
        Self {
            name,
            account,
            app_token,
            http,
            threads,
            clock,
            ids,
        }
    }
}

#[async_trait]
impl Source for SlackSocketSource {
    fn channel(&self) -> &'static str {
        SLACK
    }

    fn account(&self) -> &str {
        &self.name
    }

    fn direct_policy(&self) -> DirectPolicy {
        self.account.direct
    }

    async fn run(&self, from: Option<SourceWatermark>, sink: &SourceSink) -> SourceEnd {
        let ended = match SocketReader::open(self, sink, from).await {
            Ok(mut reader) => reader.read().await,
            Err(end) => Err(end),
        };
        ended.unwrap_or_else(|end| end)
    }
}

/// Step that follows from a frame.
#[derive(Debug, PartialEq, Eq)]
enum FrameStep {
    /// The payloads of these envelopes are durable, as events or as dead letters, or are no events.
    Acknowledge(Vec<String>),
    /// The connection ends soon.
    Renew,
    Nothing,
}

/// A running source.
struct SocketReader<'a> {
    source: &'a SlackSocketSource,
    sink: &'a SourceSink,
    bot: SlackBot,
    /// Name of the bot and its workspace, for people.
    shown: String,
    /// Time up to which no payload was missed; `None` before the first connection.
    complete_until: Option<UnixMillis>,
    noted_at: UnixMillis,
    /// Number of connections and calls that failed one after the other.
    failures: u32,
    /// Texts that wait for those that follow, with their envelopes.
    texts: MessageMerger<String>,
    /// Looks for posts of the time in which the account received over HTTP.
    looks: LateLooks,
}

/// The end of a source, as the error that ends its loop.
type Ended<T> = Result<T, SourceEnd>;

impl<'a> SocketReader<'a> {
    /// Asks who the account is.
    async fn open(source: &'a SlackSocketSource, sink: &'a SourceSink, from: Option<SourceWatermark>) -> Ended<Self> {
        let mut failures = 0;
        let known = loop {
            match identify_account(&source.http, &source.name, &source.account).await {
                Ok(known) => break known,
                Err(error) => {
                    failures += 1;
                    wait_after(source, sink, &error, failures).await?;
                }
            }
        };

        // The time of another app says nothing about this one.
        let of = known.bot.position_name();
        let from = from.filter(|from| from.of == of);
        let posted = PostedPayloads::resume((&source.account, &source.threads), of, from.as_ref(), sink.now());
        // Posts of the time in which the account received over HTTP come before messages over the socket.
        let posted = posted.into_reader(&source.name, sink);
        let posted = Box::pin(posted.drain()).await?;
        let waits = MergeWaits {
            burst_most_ms: i64::try_from(MAX_DEBOUNCE_MS).unwrap_or(i64::MAX),
            ..MergeWaits::of_texts(source.account.debounce_ms)
        };

        Ok(Self {
            source,
            sink,
            bot: known.bot,
            shown: known.shown,
            complete_until: posted.complete_until,
            noted_at: UnixMillis(0),
            failures: 0,
            texts: MessageMerger::new(waits, posted.memory),
            looks: LateLooks::start(source.clock.monotonic()),
        })
    }

    /// Reads connections one after the other, until an operator must do something, or this replica does not hold the
    /// account any more.
    async fn read(&mut self) -> Ended<SourceEnd> {
        loop {
            // A replica that was stopped for a while must not open a connection.
            if !self.sink.is_held() {
                return Err(SourceEnd::Fenced);
            }

            let source = self.source;
            let opened = async {
                let url = open_connection(&source.http, &source.account, &source.app_token).await?;
                open_socket(&source.http, &url, &source.ids).await
            };
            let begun = source.clock.monotonic();
            let error = match opened.await {
                Ok(socket) => self.follow(socket).await?,
                Err(error) => error,
            };

            if self.is_sound(begun) {
                self.failures = 0;
                continue;
            }
            self.failures = self.failures.saturating_add(1);
            wait_after(source, self.sink, &error, self.failures).await?;
        }
    }

    fn is_sound(&self, begun: Instant) -> bool {
        self.source.clock.monotonic().saturating_duration_since(begun) >= SOUND_AFTER
    }

    /// Reads one connection until it ends, and stores what waits then; returns why it ended.
    async fn follow(&mut self, mut socket: Socket) -> Ended<WebCallError> {
        // Also if no connection follows: Slack may send nothing again to an app that is switched off.
        let why = self.exchange(&mut socket).await;
        // Envelopes that cannot be acknowledged any more come again, and their messages are known by then.
        self.texts.close_growing();
        let stored = self.store_ready(self.sink.now()).await?;
        acknowledge(&mut socket, stored).await;
        Ok(WebCallError::Unreachable(format!("the connection ended: {}", why?)))
    }

    /// Stores posts of the time in which the account received over HTTP that have come to the bucket since the last look, if the
    /// next look is due. Such texts are merged with none, so that there are no decisions about them.
    async fn store_posted(&mut self) -> Ended<()> {
        let source = self.source;
        if !self.looks.is_due(source.clock.monotonic()) {
            return Ok(());
        }
        let (of, known) = (self.bot.position_name(), (self.complete_until, self.texts.to_stored()));
        let posted = PostedPayloads::at_work((&source.account, &source.threads), of, known, self.sink.now());
        let posted = posted.into_reader(&source.name, self.sink);
        Box::pin(posted.drain()).await.map(drop)
    }

    /// Reads `socket` until it ends; returns why.
    async fn exchange(&mut self, socket: &mut Socket) -> Ended<&'static str> {
        let mut silent = 0;
        loop {
            self.store_posted().await?;
            let due = self.texts.until_due(self.sink.now());
            let frame = tokio::select! {
                biased;
                frame = socket.next() => frame,
                () = pause(due.unwrap_or_default()), if due.is_some() => {
                    let stored = self.store_ready(self.sink.now()).await?;
                    if !acknowledge(socket, stored).await {
                        return Ok("lost");
                    }
                    continue;
                }
                () = pause(PING_EVERY) => {
                    silent += 1;
                    if silent >= MAX_SILENT {
                        return Ok("nothing came over it");
                    }
                    if socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                        return Ok("lost");
                    }
                    self.note_complete().await?;
                    continue;
                }
            };

            silent = 0;
            let step = match frame {
                Some(Ok(Message::Text(text))) => self.take_frame(&text).await?,
                Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {
                    FrameStep::Nothing
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok("closed"),
            };
            match step {
                FrameStep::Acknowledge(envelopes) => {
                    if !acknowledge(socket, envelopes).await {
                        return Ok("lost");
                    }
                }
                FrameStep::Renew => return Ok("Slack asks for another one"),
                FrameStep::Nothing => {}
            }
        }
    }

    /// Stores the events of a frame.
    async fn take_frame(&mut self, text: &str) -> Ended<FrameStep> {
        let frame = match SocketFrame::from_text(text) {
            Ok(frame) => frame,
            Err(error) => return self.give_up_frame(text, &error).await,
        };

        match frame {
            SocketFrame::Hello { connections } => {
                self.greet(connections).await?;
                Ok(FrameStep::Nothing)
            }
            SocketFrame::SwitchedOff => Err(SourceEnd::Stopped {
                reason: "Socket Mode is switched off for the app".to_owned(),
                again: Some(STOPPED_AGAIN),
            }),
            SocketFrame::EndsSoon => Ok(FrameStep::Renew),
            SocketFrame::Payload { envelope, payload } => {
                let stored = self.take_payload(envelope, &payload).await?;
                Ok(FrameStep::Acknowledge(stored))
            }
            SocketFrame::Other => Ok(FrameStep::Nothing),
        }
    }

    /// Notes that the connection works, and that payloads may be missing if there was none for long.
    async fn greet(&mut self, connections: u32) -> Ended<()> {
        if connections > 1 {
            let told = format!("{connections} connections share the app's payloads at random: end the other programs");
            tracing::warn!(
                account = self.source.name,
                connections,
                "other connections get payloads of this app"
            );
            self.sink.report(Err(&told));
        } else {
            self.sink
                .report(Ok(&format!("receiving as {} over a socket", self.shown)));
        }

        let now = self.sink.now();
        if let Some(from) = self.complete_until.filter(|from| now.since(*from) > REPEATED_MS) {
            let gap = SourceGap {
                from,
                to: now,
                item: None,
                reason: "no connection for longer than Slack repeats what was written: some of it may be missing"
                    .to_owned(),
            };
            self.complete_until = Some(now);
            return Ok(self.sink.gap(&gap, self.position(now)).await?);
        }
        self.note_complete().await
    }

    /// Stores the events of `payload`, which came in `envelope`, or notes why there are none. A text may wait for those that
    /// follow. Returns the envelopes that may be acknowledged.
    async fn take_payload(&mut self, envelope: String, payload: &Value) -> Ended<Vec<String>> {
        let now = self.sink.now();
        let events = match payload_events(&self.bot, payload, now) {
            Ok(events) => events,
            Err(reason) => {
                self.refuse(payload, &reason).await?;
                return Ok(vec![envelope]);
            }
        };

        let mut is_held = false;
        for event in events {
            let conversation = event.peer.id.clone();
            is_held |= self.texts.push(&conversation, envelope.clone(), event, now);
        }
        let mut stored = self.store_ready(now).await?;
        // All of it was stored before, as parts of other events.
        if !is_held {
            stored.push(envelope);
        }
        Ok(stored)
    }

    /// Stores the events that wait no more at `now`. Returns their envelopes.
    async fn store_ready(&mut self, now: UnixMillis) -> Ended<Vec<String>> {
        let ready = self.texts.take_ready(now);
        if ready.is_empty() {
            return Ok(Vec::new());
        }
        let decided: Vec<MergeDecision> = ready.iter().filter_map(|ready| ready.decision.clone()).collect();
        if !decided.is_empty() {
            // Otherwise a text that comes late could be part of an event that was published before a crash, and be lost.
            let position = self.position(self.complete_until.unwrap_or(now));
            self.sink.put(Vec::new(), position).await?;
            self.texts.note_stored(&decided);
        }

        let policy = self.source.account.access();
        let (mut events, mut envelopes) = (Vec::with_capacity(ready.len()), Vec::new());
        for ReadyEvent { mut event, keys, .. } in ready {
            // In a merged event any of the texts may address the app, and its first one begins the thread.
            let is_begun = self.source.threads.knows(&event);
            apply_policy(&policy, &mut event, is_begun);
            self.source.threads.note(&event).await;
            events.push(event);
            envelopes.extend(keys);
        }
        self.put(events, now).await?;

        // A payload of several events may have one that waits.
        envelopes.retain(|envelope| self.texts.keys().all(|waiting| waiting != envelope));
        envelopes.sort_unstable();
        envelopes.dedup();
        Ok(envelopes)
    }

    /// Makes a dead letter of the frame `text`, which cannot be read because of `error`. One that names its envelope is
    /// acknowledged then: Slack would send it again without end.
    async fn give_up_frame(&self, text: &str, error: &serde_json::Error) -> Ended<FrameStep> {
        let (frame, envelope) = unreadable_frame(text);
        let reason = RefusePayloadError::Malformed(format!("frame: {error}"));
        self.refuse(&frame, &reason).await?;
        Ok(envelope.map_or(FrameStep::Nothing, |id| FrameStep::Acknowledge(vec![id])))
    }

    /// Notes `payload`, which makes no event because of `reason`. One that cannot be read becomes a dead letter.
    async fn refuse(&self, payload: &Value, reason: &RefusePayloadError) -> Ended<()> {
        note_refused(&self.source.name, payload, reason);
        if reason.is_unreadable() {
            let kept = unreadable_payload(&self.bot, payload);
            let detail = reason.to_string();
            self.sink.give_up_payload(&kept, reason.name(), &detail).await?;
        }
        Ok(())
    }

    /// Writes the watermark if that is due.
    async fn note_complete(&mut self) -> Ended<()> {
        let now = self.sink.now();
        if now.since(self.noted_at) < NOTE_EVERY_MS && self.complete_until.is_some() {
            return Ok(());
        }
        Ok(self.put(Vec::new(), now).await?)
    }

    async fn put(&mut self, events: Vec<shared::model::event::Event>, now: UnixMillis) -> Result<(), PutEventsError> {
        // What waits is not stored yet.
        let complete_until = self.texts.waiting_since().unwrap_or(now).min(now);
        self.sink.put(events, self.position(complete_until)).await?;
        (self.complete_until, self.noted_at) = (Some(complete_until), now);
        Ok(())
    }

    fn position(&self, complete_until: UnixMillis) -> SourcePosition {
        SourcePosition {
            of: self.bot.position_name(),
            // Slack has no position: it sends the payloads that were not acknowledged. Integers and texts have a JSON form.
            position: serde_json::to_value(self.texts.to_stored()).unwrap_or_default(),
            complete_until,
        }
    }
}

/// Acknowledges `envelopes` over `socket`. Returns whether it is still there.
async fn acknowledge(socket: &mut Socket, envelopes: Vec<String>) -> bool {
    for envelope in envelopes {
        let told = acknowledgement(&envelope);
        if socket.send(Message::Text(told.into())).await.is_err() {
            return false;
        }
    }
    true
}

/// Waits as long as `error` asks for.
async fn wait_after(source: &SlackSocketSource, sink: &SourceSink, error: &WebCallError, failures: u32) -> Ended<()> {
    let wait = error.wait(failures, source.ids.draw_jitter());
    match error {
        WebCallError::Unauthorized(_) => {
            return Err(SourceEnd::Stopped {
                reason: error.to_string(),
                again: Some(STOPPED_AGAIN),
            });
        }
        WebCallError::Limited(_) | WebCallError::Refused(_) | WebCallError::Unreachable(_) => {}
    }

    let wait_ms = wait.as_millis();
    tracing::warn!(account = source.name, failures, %error, wait_ms, "socket of Slack failed; retrying");
    metrics::counter!("nexus_source_failures_total", "source" => SLACK).increment(1);
    sink.report(Err(&format!("failing: {error}")));
    if !sink.is_held() {
        return Err(SourceEnd::Fenced);
    }
    pause(wait).await;
    Ok(())
}
