//! Drives one socket: frames in, heartbeats and answers out, dispatches to the reader.
//!
//! The reader may wait for the stream; heartbeats go on meanwhile. What the reader does not take is held up to a bound, and
//! then the socket is not read, so that the gateway waits. A press is answered here, within the vendor's three seconds: it
//! comes again after a crash until its event is stored.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use shared::clock::{SharedClock, pause};
use shared::platform::discord::DISCORD;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::client::DiscordClient;
use super::link::{CLOSE_AND_RESUME, CloseReason, Dispatch, GatewayLink, LinkStep, close_reason};
use super::message::PRESS;

/// Maximum time until the gateway says its first word.
const HELLO_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time to send a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time to close a socket in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of dispatches that wait for the reader before no more are read from the socket.
const MAX_WAITING: usize = 5_000;

/// Size of the dispatches whose events are not stored yet, from which on no more are read from the socket, in KiB as the
/// gateway sends them.
const MAX_HELD_KIB: usize = 64 * 1024;

/// Number of presses that are answered at a time. Those beyond are stored all the same, but their users see an error.
const MAX_PRESSES: usize = 64;

/// What a socket brings the reader.
#[derive(Debug)]
pub(super) enum LinkItem {
    /// A dispatch.
    Dispatch(HeldDispatch),
    /// The connection was alive when everything before had arrived.
    Alive,
}

/// A dispatch whose events are not stored yet. It counts against the bound of its socket until it is dropped.
#[derive(Debug)]
pub(super) struct HeldDispatch {
    /// The dispatch.
    pub dispatch: Dispatch,
    /// Its size in bytes, as the gateway sent it.
    pub bytes: usize,
    /// Share of the bound.
    held: Option<OwnedSemaphorePermit>,
}

impl LinkItem {
    /// Returns whether a session begins with this.
    fn begins_session(&self) -> bool {
        match self {
            Self::Dispatch(held) => held.dispatch.kind == "READY",
            Self::Alive => false,
        }
    }
}

impl HeldDispatch {
    /// Returns a dispatch of `bytes` bytes that counts against no bound.
    #[must_use]
    pub(super) const fn new(dispatch: Dispatch, bytes: usize) -> Self {
        Self {
            dispatch,
            bytes,
            held: None,
        }
    }

    /// Takes the share of the dispatch from `room`, or all that is left of it: one frame may be larger.
    fn hold_in(mut self, room: &Arc<Semaphore>) -> Self {
        let wanted = self.bytes.div_ceil(1024).min(room.available_permits());
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.held = Arc::clone(room).try_acquire_many_owned(wanted).ok();
        self
    }
}

/// The connection below a socket.
pub(super) trait SocketStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> SocketStream for T {}

/// What driving a socket needs. Its `Debug` output has no token.
pub(super) struct LinkDriver<'a> {
    /// Client that answers presses.
    pub client: &'a DiscordClient,
    /// The bot's token.
    pub token: &'a str,
    /// Random number in 0..1, for the first heartbeat.
    pub jitter: f64,
    /// Way to the reader.
    pub items: mpsc::Sender<LinkItem>,
    /// Number of the last dispatch whose events are stored.
    pub stored: watch::Receiver<u64>,
    /// Name of the account, for the log.
    pub account: &'a str,
    /// Clock of heartbeats.
    pub timer: &'a SharedClock,
}

// By hand: the token must not be printed.
impl std::fmt::Debug for LinkDriver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkDriver(…)")
    }
}

impl LinkDriver<'_> {
    /// Drives `socket` with `link` until it is left. Everything that was handed over before is with the reader then,
    /// unless the session is resumed, which brings it again. A session of which the reader was not told cannot be resumed, and
    /// the vendor counts each one that is begun.
    pub(super) async fn drive<S: SocketStream>(
        mut self,
        mut socket: WebSocketStream<S>,
        mut link: GatewayLink,
    ) -> CloseReason {
        let mut waiting: VecDeque<LinkItem> = VecDeque::new();
        let reason = self.exchange(&mut socket, &mut link, &mut waiting).await;

        let code = match reason {
            CloseReason::Resume(_) | CloseReason::Unreadable(_) => CloseCode::from(CLOSE_AND_RESUME),
            CloseReason::Identify(_) | CloseReason::Stop(_) => CloseCode::Normal,
        };
        let frame = CloseFrame {
            code,
            reason: "".into(),
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, socket.close(Some(frame)))
            .await
            .is_err()
        {
            tracing::debug!("failed to close a socket in time");
        }

        if !reason.is_resumable() || waiting.iter().any(LinkItem::begins_session) {
            for item in waiting {
                if self.items.send(item).await.is_err() {
                    break;
                }
            }
        }
        reason
    }

    async fn exchange<S: SocketStream>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        link: &mut GatewayLink,
        waiting: &mut VecDeque<LinkItem>,
    ) -> CloseReason {
        let opened = self.timer.monotonic();
        let mut answers = FuturesUnordered::new();
        let reader_ended = || CloseReason::Resume("the reader ended".to_owned());
        let room = Arc::new(Semaphore::new(MAX_HELD_KIB));
        let mut is_slowed = false;

        loop {
            let now = self.timer.monotonic();
            let due = link.next_time().unwrap_or(opened + HELLO_TIMEOUT);
            let is_full = waiting.len() >= MAX_WAITING || room.available_permits() == 0;
            self.note_room(waiting.len(), is_full && !is_slowed);
            is_slowed = is_full;
            if is_full {
                link.excuse_silence();
            }

            let mut bytes = 0;
            let steps = tokio::select! {
                changed = self.stored.changed() => {
                    if changed.is_err() {
                        return reader_ended();
                    }
                    link.confirm(*self.stored.borrow_and_update());
                    Vec::new()
                }
                // Given back at once: what was held is stored, so that the socket may be read again.
                freed = room.acquire(), if room.available_permits() == 0 => {
                    drop(freed);
                    Vec::new()
                }
                place = self.items.reserve(), if !waiting.is_empty() => {
                    match (place, waiting.pop_front()) {
                        (Ok(place), Some(item)) => place.send(item),
                        (Ok(_), None) => {}
                        (Err(_), _) => return reader_ended(),
                    }
                    Vec::new()
                }
                message = socket.next(), if !is_full => match read_message(message) {
                    Ok(Some((frame, size))) => {
                        bytes = size;
                        link.on_frame(&frame, self.token, self.jitter, self.timer.monotonic())
                    }
                    Ok(None) => Vec::new(),
                    Err(reason) => return reason,
                },
                Some(()) = answers.next(), if !answers.is_empty() => Vec::new(),
                () = pause(due.saturating_duration_since(now)) => self.on_due(link),
            };

            for step in steps {
                match step {
                    LinkStep::Send(value) => {
                        if let Err(reason) = send(socket, &value).await {
                            return reason;
                        }
                    }
                    LinkStep::Dispatch(dispatch) => {
                        let press = press_of(&dispatch).filter(|_| self.may_answer(answers.len()));
                        answers.extend(press.map(|(id, token)| answer(self.client, id, token)));
                        let held = HeldDispatch::new(dispatch, bytes).hold_in(&room);
                        waiting.push_back(LinkItem::Dispatch(held));
                    }
                    LinkStep::Alive => waiting.push_back(LinkItem::Alive),
                    LinkStep::Close(reason) => return reason,
                }
            }
        }
    }
}

impl LinkDriver<'_> {
    /// Notes whether the socket is read no more from now on, because `waiting` items and what they hold are too much.
    fn note_room(&self, waiting: usize, is_slowed: bool) {
        if is_slowed {
            let account = self.account;
            tracing::warn!(account, waiting, "too much is not stored yet; the gateway waits");
            metrics::counter!("nexus_source_slowed_total", "source" => DISCORD).increment(1);
        }
    }

    /// Returns the steps of `link` whose time has come.
    fn on_due(&self, link: &mut GatewayLink) -> Vec<LinkStep> {
        if link.next_time().is_none() {
            let words = "no message from the gateway within 20 s".to_owned();
            return vec![LinkStep::Close(CloseReason::Resume(words))];
        }
        link.on_time(self.timer.monotonic())
    }

    /// Returns whether one more press may be answered beside `answers` others; counts it if not.
    fn may_answer(&self, answers: usize) -> bool {
        if answers < MAX_PRESSES {
            return true;
        }
        tracing::warn!(
            account = self.account,
            "too many presses at a time; one is not answered"
        );
        metrics::counter!("nexus_source_unanswered_presses_total", "source" => DISCORD).increment(1);
        false
    }
}

/// Returns the JSON in a message of the socket, and its size in bytes; `None` if it has none.
fn read_message(message: Option<Result<Message, SocketError>>) -> Result<Option<(Value, usize)>, CloseReason> {
    match message {
        Some(Ok(Message::Text(text))) => match serde_json::from_str(text.as_str()) {
            Ok(frame) => Ok(Some((frame, text.len()))),
            Err(error) => Err(CloseReason::Unreadable(format!("the gateway sends no JSON: {error}"))),
        },
        Some(Ok(Message::Close(frame))) => {
            let code = frame.as_ref().map(|frame| u16::from(frame.code));
            let words = frame.as_ref().map(|frame| frame.reason.as_str());
            Err(close_reason(code, words.unwrap_or_default()))
        }
        Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
        Some(Err(error @ (SocketError::Capacity(_) | SocketError::Utf8(_)))) => Err(CloseReason::Unreadable(format!(
            "a message of the gateway cannot be read: {error}"
        ))),
        Some(Err(error)) => {
            tracing::debug!(%error, "a socket broke");
            Err(close_reason(None, ""))
        }
        None => Err(close_reason(None, "")),
    }
}

async fn send<S: SocketStream>(socket: &mut WebSocketStream<S>, value: &Value) -> Result<(), CloseReason> {
    let sent = tokio::time::timeout(SEND_TIMEOUT, socket.send(Message::text(value.to_string()))).await;
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(close_reason(None, "")),
    }
}

/// Returns id and token of the press that `dispatch` is; `None` if it is none.
fn press_of(dispatch: &Dispatch) -> Option<(String, String)> {
    let data = &dispatch.data;
    let is_press = dispatch.kind == "INTERACTION_CREATE" && data.get("type").and_then(Value::as_u64) == Some(PRESS);
    let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
    Some((text("id")?, text("token")?)).filter(|_| is_press)
}

async fn answer(client: &DiscordClient, id: String, token: String) {
    // A client that is not told shows its user an error; the press counts nevertheless.
    if let Err(error) = client.answer_press(&id, &token).await {
        tracing::debug!(press = id, %error, "failed to answer a press");
    }
}

#[cfg(test)]
mod tests;
