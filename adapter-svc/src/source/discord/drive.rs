//! Drives one socket: frames in, heartbeats and answers out, dispatches to the reader.
//!
//! The reader may wait for the stream; heartbeats go on meanwhile. A press is answered here, within the vendor's three
//! seconds: it comes again after a crash until its event is stored.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use shared::clock::{Clock as _, SystemClock, pause};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::client::DiscordClient;
use super::link::{CLOSE_AND_RESUME, CloseReason, Dispatch, GatewayLink, LinkStep, close_reason};
use super::message::PRESS;
use super::socket::GatewaySocket;

/// Maximum time until the gateway says its first word.
const HELLO_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time to send a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time to close a socket in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of dispatches that wait for the reader before no more are read from the socket.
const MAX_WAITING: usize = 5_000;

/// What a socket brings the reader.
#[derive(Debug)]
pub enum LinkItem {
    /// A dispatch.
    Dispatch(Dispatch),
    /// The connection was alive when everything before had arrived.
    Alive,
}

/// What driving a socket needs. Its `Debug` output has no token.
pub struct LinkDriver<'a> {
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
}

// By hand: the token must not be printed.
impl std::fmt::Debug for LinkDriver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkDriver(…)")
    }
}

impl LinkDriver<'_> {
    /// Drives `socket` with `link` until it is left. Everything that was handed over before is with the reader then,
    /// unless the session is resumed, which brings it again.
    pub async fn drive(mut self, mut socket: GatewaySocket, mut link: GatewayLink) -> CloseReason {
        let mut waiting: VecDeque<LinkItem> = VecDeque::new();
        let reason = self.exchange(&mut socket, &mut link, &mut waiting).await;

        let code = match reason {
            CloseReason::Resume(_) => CloseCode::from(CLOSE_AND_RESUME),
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

        if !matches!(reason, CloseReason::Resume(_)) {
            for item in waiting {
                if self.items.send(item).await.is_err() {
                    break;
                }
            }
        }
        reason
    }

    async fn exchange(
        &mut self,
        socket: &mut GatewaySocket,
        link: &mut GatewayLink,
        waiting: &mut VecDeque<LinkItem>,
    ) -> CloseReason {
        let opened = SystemClock.monotonic();
        let mut answers = FuturesUnordered::new();
        let reader_ended = || CloseReason::Resume("the reader ended".to_owned());

        loop {
            let now = SystemClock.monotonic();
            let due = link.next_time().unwrap_or(opened + HELLO_TIMEOUT);
            let steps = tokio::select! {
                changed = self.stored.changed() => {
                    if changed.is_err() {
                        return reader_ended();
                    }
                    link.confirm(*self.stored.borrow_and_update());
                    Vec::new()
                }
                room = self.items.reserve(), if !waiting.is_empty() => {
                    match (room, waiting.pop_front()) {
                        (Ok(room), Some(item)) => room.send(item),
                        (Ok(_), None) => {}
                        (Err(_), _) => return reader_ended(),
                    }
                    Vec::new()
                }
                message = socket.next(), if waiting.len() < MAX_WAITING => match read_message(message) {
                    Ok(Some(frame)) => link.on_frame(&frame, self.token, self.jitter, SystemClock.monotonic()),
                    Ok(None) => Vec::new(),
                    Err(reason) => return reason,
                },
                Some(()) = answers.next(), if !answers.is_empty() => Vec::new(),
                () = pause(due.saturating_duration_since(now)) => {
                    if link.next_time().is_none() {
                        return CloseReason::Resume("no message from the gateway within 20 s".to_owned());
                    }
                    link.on_time(SystemClock.monotonic())
                }
            };

            for step in steps {
                match step {
                    LinkStep::Send(value) => {
                        if let Err(reason) = send(socket, &value).await {
                            return reason;
                        }
                    }
                    LinkStep::Dispatch(dispatch) => {
                        answers.extend(press_of(&dispatch).map(|(id, token)| answer(self.client, id, token)));
                        waiting.push_back(LinkItem::Dispatch(dispatch));
                    }
                    LinkStep::Alive => waiting.push_back(LinkItem::Alive),
                    LinkStep::Close(reason) => return reason,
                }
            }
        }
    }
}

/// Returns the JSON in a message of the socket; `None` if it has none.
fn read_message(message: Option<Result<Message, SocketError>>) -> Result<Option<Value>, CloseReason> {
    match message {
        Some(Ok(Message::Text(text))) => match serde_json::from_str(text.as_str()) {
            Ok(frame) => Ok(Some(frame)),
            Err(error) => Err(CloseReason::Resume(format!("the gateway sends no JSON: {error}"))),
        },
        Some(Ok(Message::Close(frame))) => {
            let code = frame.as_ref().map(|frame| u16::from(frame.code));
            let words = frame.as_ref().map(|frame| frame.reason.as_str());
            Err(close_reason(code, words.unwrap_or_default()))
        }
        Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
        Some(Err(error)) => {
            tracing::debug!(%error, "a socket broke");
            Err(close_reason(None, ""))
        }
        None => Err(close_reason(None, "")),
    }
}

async fn send(socket: &mut GatewaySocket, value: &Value) -> Result<(), CloseReason> {
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
