//! The source that reads an app's payloads over a socket that it opens itself (Socket Mode).
//!
//! Source: <https://docs.slack.dev/apis/events-api/using-socket-mode>. A payload is acknowledged once its events are
//! durable; Slack sends the others again, on any connection of the app. One connection at a time: several would get the
//! payloads at random.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::clock::{SharedClock, SharedIds, pause};
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::process::SecretValue;
use shared::wire::watermark::SourceWatermark;
use tokio_tungstenite::tungstenite::Message;

use super::client::{WebCallError, identify_account, open_connection};
use super::handshake::{Socket, open_socket};
use super::normalize::payload_events;
use super::post_payload::note_refused;
use super::privacy::unreadable_payload;
use super::threads::apply_policy;
use super::{REPEATED_MS, RefusePayloadError, SlackBot};
use crate::source::port::sink::SourcePosition;
use crate::source::port::{PutEventsError, Source, SourceEnd, SourceGap, SourceSink};

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
    /// Returns the source of the account `name`, which calls by `http` and opens connections with `app_token`.
    #[must_use]
    pub const fn new(
        name: String,
        account: SlackAccount,
        app_token: SecretValue,
        http: reqwest::Client,
        clock: SharedClock,
        ids: SharedIds,
    ) -> Self {
        Self {
            name,
            account,
            app_token,
            http,
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

/// A frame of Slack's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SocketFrame {
    #[serde(rename = "type")]
    kind: String,
    /// Id by which a payload is acknowledged.
    envelope_id: Option<String>,
    payload: Value,
    /// Of `hello`: number of the app's connections.
    num_connections: Option<u32>,
    /// Of `disconnect`.
    reason: Option<String>,
}

/// Step that follows from a frame.
#[derive(Debug, PartialEq, Eq)]
enum FrameStep {
    /// The payload of this envelope is durable, as events or as a dead letter, or is no event.
    Acknowledge(String),
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
        let complete_until = from.filter(|from| from.of == of).map(|from| from.complete_until);
        Ok(Self {
            source,
            sink,
            bot: known.bot,
            shown: known.shown,
            complete_until,
            noted_at: UnixMillis(0),
            failures: 0,
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
                open_socket(&url, &source.ids).await
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

    /// Reads one connection until it ends; returns why.
    async fn follow(&mut self, mut socket: Socket) -> Ended<WebCallError> {
        let ended = |why: &str| Ok(WebCallError::Unreachable(format!("the connection ended: {why}")));
        let mut silent = 0;
        loop {
            let frame = tokio::select! {
                biased;
                frame = socket.next() => frame,
                () = pause(PING_EVERY) => {
                    silent += 1;
                    if silent >= MAX_SILENT {
                        return ended("nothing came over it");
                    }
                    if socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                        return ended("lost");
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
                Some(Ok(Message::Close(_)) | Err(_)) | None => return ended("closed"),
            };
            match step {
                FrameStep::Acknowledge(envelope) => {
                    let told = json!({ "envelope_id": envelope }).to_string();
                    if socket.send(Message::Text(told.into())).await.is_err() {
                        return ended("lost");
                    }
                }
                FrameStep::Renew => return ended("Slack asks for another one"),
                FrameStep::Nothing => {}
            }
        }
    }

    /// Stores the events of a frame.
    async fn take_frame(&mut self, text: &str) -> Ended<FrameStep> {
        let frame: SocketFrame = match serde_json::from_str(text) {
            Ok(frame) => frame,
            Err(error) => return self.give_up_frame(text, &error).await,
        };

        match (frame.kind.as_str(), frame.envelope_id) {
            ("hello", _) => {
                self.greet(frame.num_connections.unwrap_or(1)).await?;
                Ok(FrameStep::Nothing)
            }
            ("disconnect", _) if frame.reason.as_deref() == Some("link_disabled") => Err(SourceEnd::Stopped {
                reason: "Socket Mode is switched off for the app".to_owned(),
                again: Some(STOPPED_AGAIN),
            }),
            ("disconnect", _) => Ok(FrameStep::Renew),
            (_, Some(envelope)) => {
                self.store(&frame.payload).await?;
                Ok(FrameStep::Acknowledge(envelope))
            }
            (_, None) => Ok(FrameStep::Nothing),
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

    /// Stores the events of `payload`, or notes why there are none.
    async fn store(&mut self, payload: &Value) -> Ended<()> {
        let now = self.sink.now();
        let mut events = match payload_events(&self.bot, payload, now) {
            Ok(events) => events,
            Err(reason) => return self.refuse(payload, &reason).await,
        };
        let policy = self.source.account.access();
        events.iter_mut().for_each(|event| apply_policy(&policy, event));
        self.put(events, now).await?;
        Ok(())
    }

    /// Makes a dead letter of the frame `text`, which cannot be read because of `error`. One that names its envelope is
    /// acknowledged then: Slack would send it again without end.
    async fn give_up_frame(&self, text: &str, error: &serde_json::Error) -> Ended<FrameStep> {
        // In a text that is no JSON a code of ours cannot be found, so nothing of it is kept.
        let frame: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({"left_out_bytes": text.len()}));
        let reason = RefusePayloadError::Malformed(format!("frame: {error}"));
        self.refuse(&frame, &reason).await?;

        let envelope = frame.get("envelope_id").and_then(Value::as_str);
        Ok(envelope.map_or(FrameStep::Nothing, |id| FrameStep::Acknowledge(id.to_owned())))
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
        self.sink.put(events, self.position(now)).await?;
        (self.complete_until, self.noted_at) = (Some(now), now);
        Ok(())
    }

    fn position(&self, complete_until: UnixMillis) -> SourcePosition {
        SourcePosition {
            of: self.bot.position_name(),
            // Slack has no position: it sends the payloads that were not acknowledged.
            position: json!({}),
            complete_until,
        }
    }
}

/// Waits as long as `error` asks for.
async fn wait_after(source: &SlackSocketSource, sink: &SourceSink, error: &WebCallError, failures: u32) -> Ended<()> {
    let random = source.ids.ulid().random() & 0xFFFF;
    #[expect(clippy::cast_precision_loss, reason = "16 bits fit")]
    let wait = error.wait(failures, random as f64 / 65_536.0);
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
