//! Source and channel `webchat`: a page, and a WebSocket per open page.
//!
//! The visitor's id is made by the page and is all that tells visitors apart: who knows it reads and writes that
//! conversation. A page that (re)connects is subscribed first and then given its history, so that no part falls
//! between; it skips what it shows already.

pub mod protocol;

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use shared::bus::{CoreMessage, CoreSubscription};
use shared::clock::pause;
use shared::process::trace::consumer_span;
use shared::projection::api::{HistoryReply, HistoryRequest};
use shared::wire::headers::{Carrier, Headers};
use shared::wire::subject;
use tracing::Instrument;

use crate::error::Refusal;
use crate::gateway::Gateway;
use crate::normalize;
use crate::trace::accept_span;
use protocol::{ForPage, FromPage, Item, ToPage};

/// Largest WebSocket message of a page, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// How often a silent page is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How many of these may stay unanswered.
const MAX_SILENT_PINGS: u32 = 2;
/// How long a page may take to be sent one message.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// How long the read model may take to answer.
const HISTORY_WITHIN: Duration = Duration::from_secs(2);
/// How much of a conversation a page is given.
const HISTORY_EVENTS: u32 = 100;
/// When a connected page is given it again: a part that was sent just before it connected may reach the read model
/// only after its first answer.
const HISTORY_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(30)];
/// Who serves the history.
const HISTORY_SUBJECT: &str = "nexus.svc.events.history";
/// The page may load its own script and style, speak to its own host, and nothing else.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

/// The page.
pub async fn page() -> Response {
    asset("text/html; charset=utf-8", include_str!("../../page/webchat.html"))
}

/// Its script.
pub async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("../../page/webchat.js"))
}

/// Its style.
pub async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../../page/webchat.css"))
}

/// `GET /webchat/ws?peer={visitor}`: the WebSocket of an open page.
///
/// # Errors
/// [`Refusal`] before the upgrade: a bad visitor id, another site's page, too many pages.
pub async fn connect(
    State(gateway): State<Gateway>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if !protocol::same_origin(text(header::ORIGIN), text(header::HOST)) {
        let origin = text(header::ORIGIN).unwrap_or_default();
        return Err(Refusal::ForeignOrigin(origin.chars().take(128).collect()));
    }
    let visitor = query.get("peer").cloned().unwrap_or_default();
    protocol::check_id(&visitor).map_err(|detail| Refusal::Malformed {
        detail,
        place: "query peer",
    })?;
    let account = gateway.webchat.clone().ok_or(Refusal::UnknownPath)?;
    let place = gateway
        .sockets
        .clone()
        .try_acquire_owned()
        .map_err(|_| Refusal::Overloaded)?;
    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| {
        metrics::gauge!("nexus_adapter_webchat_sockets").increment(1.0);
        let mut page = Page {
            gateway,
            account,
            visitor,
            socket,
            silent: 0,
        };
        page.converse().await;
        metrics::gauge!("nexus_adapter_webchat_sockets").decrement(1.0);
        drop(place);
    }))
}

/// The page cannot be spoken to any more.
struct Gone;

/// An open page.
struct Page {
    gateway: Gateway,
    account: String,
    visitor: String,
    socket: WebSocket,
    silent: u32,
}

impl Page {
    async fn converse(&mut self) {
        let subject = subject::webchat(&self.account, &self.visitor);
        match self.gateway.bus.core_subscribe(&subject).await {
            Ok(mut parts) => {
                let Err(Gone) = self.exchange(&mut parts).await;
            }
            Err(error) => tracing::warn!(error, peer = self.visitor, "chat page cannot be subscribed"),
        }
        let frame = CloseFrame {
            code: close_code::AWAY,
            reason: "the server is going away".into(),
        };
        // The page may be gone already; it comes back by itself either way.
        let _ = tokio::time::timeout(SEND_WITHIN, self.socket.send(Message::Close(Some(frame)))).await;
    }

    /// Carries both ways until one side ends.
    async fn exchange(&mut self, parts: &mut CoreSubscription) -> Result<std::convert::Infallible, Gone> {
        let (account, visitor) = (self.account.clone(), self.visitor.clone());
        self.say(&ToPage::Ready {
            account: &account,
            peer: &visitor,
        })
        .await?;
        let items = history(&self.gateway, &account, &visitor).await;
        self.say(&ToPage::History { items }).await?;
        let shutdown = self.gateway.shutdown.clone();
        let mut again = HISTORY_AGAIN_AFTER.into_iter();
        let mut waits = again.next();
        let recall = pause(waits.unwrap_or_default());
        tokio::pin!(recall);
        loop {
            tokio::select! {
                () = &mut recall, if waits.is_some() => {
                    let items = history(&self.gateway, &account, &visitor).await;
                    if !items.is_empty() {
                        self.say(&ToPage::History { items }).await?;
                    }
                    waits = again.next();
                    recall.set(pause(waits.unwrap_or_default()));
                }
                said = self.socket.recv() => match said {
                    Some(Ok(message)) => self.hear(message).await?,
                    Some(Err(_)) | None => return Err(Gone),
                },
                part = parts.next() => match part {
                    Some(message) => self.forward(message).await?,
                    None => return Err(Gone),
                },
                () = pause(PING_EVERY) => self.ping().await?,
                () = shutdown.requested() => return Err(Gone),
            }
        }
    }

    async fn ping(&mut self) -> Result<(), Gone> {
        self.silent += 1;
        if self.silent > MAX_SILENT_PINGS {
            Err(Gone)
        } else {
            self.send(Message::Ping(bytes::Bytes::new())).await
        }
    }

    async fn hear(&mut self, message: Message) -> Result<(), Gone> {
        self.silent = 0;
        match message {
            Message::Text(text) => self.take(&text).await,
            Message::Binary(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => self.take(text).await,
                Err(error) => {
                    let detail = format!("invalid UTF-8 at byte {}", error.valid_up_to());
                    self.refuse(
                        None,
                        &Refusal::Malformed {
                            detail,
                            place: "message",
                        },
                    )
                    .await
                }
            },
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => Err(Gone),
        }
    }

    /// Makes an event of what the visitor wrote; answers once it is durable.
    async fn take(&mut self, text: &str) -> Result<(), Gone> {
        let (id, text) = match protocol::read(text) {
            Ok(FromPage::Message { id, text }) => (id, text),
            Err((detail, place)) => return self.refuse(None, &Refusal::Malformed { detail, place }).await,
        };
        let now = self.gateway.clock.now();
        let event = match normalize::chat_message(&self.account, &self.visitor, &id, &text, now) {
            Ok(event) => event,
            Err(error) => return self.refuse(Some(&id), &error.into()).await,
        };
        let (span, carrier) = accept_span(&HeaderMap::new());
        let intake = self.gateway.intake.clone();
        let accepted = intake
            .accept("webchat", std::slice::from_ref(&event), &carrier)
            .instrument(span)
            .await;
        match accepted {
            Ok(()) => {
                self.say(&ToPage::Stored {
                    id: &id,
                    event_id: &event.id,
                })
                .await
            }
            Err(error) => self.refuse(Some(&id), &error.into()).await,
        }
    }

    async fn refuse(&mut self, id: Option<&str>, refusal: &Refusal) -> Result<(), Gone> {
        let error = refusal.describe();
        tracing::info!(peer = self.visitor, id, %error, "chat message is refused");
        self.say(&ToPage::Error { id, error }).await
    }

    /// Shows a part on the page and tells the deliverer that somebody was there.
    async fn forward(&mut self, message: CoreMessage) -> Result<(), Gone> {
        let part = match serde_json::from_slice(&message.payload) {
            Ok(ForPage::Part(part)) => part,
            Ok(ForPage::Partial(partial)) => return self.say(&ToPage::Partial(&partial)).await,
            Err(error) => {
                tracing::warn!(
                    event_id = message.headers.event_id(&message.subject), peer = self.visitor, subject = message.subject, %error,
                    "part for a chat page cannot be read"
                );
                return Ok(());
            }
        };
        let span = consumer_span("webchat.forward", &Carrier::read(&message.headers));
        let event_id = part.event_id.clone();
        async {
            self.say(&ToPage::Part(part.into())).await?;
            if let Some(reply) = &message.reply {
                self.gateway
                    .bus
                    .core_publish(reply, &Headers::new(), bytes::Bytes::from_static(b"{}"))
                    .await;
            }
            tracing::debug!(event_id, peer = self.visitor, "part is shown");
            Ok(())
        }
        .instrument(span)
        .await
    }

    async fn say(&mut self, words: &ToPage<'_>) -> Result<(), Gone> {
        let text = serde_json::to_string(words).map_err(|_| Gone)?;
        self.send(Message::Text(text.into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        match tokio::time::timeout(SEND_WITHIN, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}

/// The end of the conversation; empty where nobody serves it at the moment.
async fn history(gateway: &Gateway, account: &str, visitor: &str) -> Vec<Item> {
    let question = HistoryRequest {
        channel: "webchat".to_owned(),
        account: account.to_owned(),
        peer: visitor.to_owned(),
        thread: None,
        before: None,
        limit: Some(HISTORY_EVENTS),
    };
    let answer = gateway
        .bus
        .request::<_, HistoryReply>(HISTORY_SUBJECT, Headers::new(), &question, HISTORY_WITHIN);
    match answer.await {
        Ok(reply) => reply.events.into_iter().map(Item::from).collect(),
        Err(error) => {
            tracing::info!(%error, peer = visitor, "chat page gets no history");
            Vec::new()
        }
    }
}
