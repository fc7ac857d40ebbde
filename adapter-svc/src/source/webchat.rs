//! Source and channel `webchat`: a page, and a WebSocket per open page.
//!
//! A page makes a random key and keeps it; its first message brings the key, and the visitor's id is the key's hash. An id
//! that is read in an event, a log or a subject lets nobody speak as that visitor, and no key can be guessed. The page
//! that opens the owner's link becomes the owner's ([`owner`]). A page that (re)connects is subscribed first and then given
//! its history, so that no part falls between; it skips what it shows already.

pub mod cards;
pub mod owner;
pub mod protocol;

use std::time::Duration;

use axum::Extension;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use shared::bus::{CoreMessage, CoreSubscription};
use shared::clock::pause;
use shared::model::origin::WEBCHAT;
use shared::model::owner::Visitor;
use shared::process::trace::consumer_span;
use shared::projection::api::{HistoryReply, HistoryRequest};
use shared::wire::headers::{Carrier, Headers};
use shared::wire::subject;
use tracing::Instrument;

use crate::error::Refusal;
use crate::gateway::Gateway;
use crate::gateway::client::Client;
use crate::gateway::shares::Share;
use crate::normalize;
use crate::trace::accept_span;
use cards::Cards;
use protocol::{ForPage, FromPage, Item, ToPage};

/// Largest WebSocket message of a page, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// How often a silent page is pinged.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How many pings may stay unanswered.
const MAX_SILENT_PINGS: u32 = 2;
/// How long a page may take to send `hello`.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long a page may take to be sent one message.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// How long the read model may take to answer.
const HISTORY_WITHIN: Duration = Duration::from_secs(2);
/// How many events of a conversation a page is sent.
const HISTORY_EVENTS: u32 = 100;
/// When a connected page is sent the history again: a part that was sent just before it connected may reach the read model
/// only after its first answer.
const HISTORY_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(30)];
/// The subject on which hook-svc serves the history.
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

/// One of its scripts.
///
/// # Errors
/// [`Refusal::UnknownPath`] for any other name.
pub async fn script(Path(name): Path<String>) -> Result<Response, Refusal> {
    let text = match name.as_str() {
        "webchat.js" => include_str!("../../page/webchat.js"),
        "lines.js" => include_str!("../../page/lines.js"),
        "markdown.js" => include_str!("../../page/markdown.js"),
        "memory.js" => include_str!("../../page/memory.js"),
        _unknown => return Err(Refusal::UnknownPath),
    };
    Ok(asset("text/javascript; charset=utf-8", text))
}

/// Its style.
pub async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../../page/webchat.css"))
}

/// `GET /webchat/ws`: the WebSocket of an open page.
///
/// # Errors
/// [`Refusal`] before the upgrade: another site's page, too many pages.
pub async fn connect(
    State(gateway): State<Gateway>,
    client: Option<Extension<Client>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if !protocol::same_origin(text(header::ORIGIN), text(header::HOST)) {
        let origin = text(header::ORIGIN).unwrap_or_default();
        return Err(Refusal::ForeignOrigin(origin.chars().take(128).collect()));
    }

    let account = gateway.webchat.clone().ok_or(Refusal::UnknownPath)?;
    // Without a listener of ours there is no address to count by.
    let client = client.map_or(Client([0; 4].into()), |Extension(client)| client);
    let place = gateway
        .sockets
        .take(client.0, gateway.clock.monotonic())
        .ok_or(Refusal::Overloaded)?;

    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| {
        metrics::gauge!("nexus_adapter_webchat_sockets").increment(1.0);

        if let Some((socket, visitor)) = greet(socket, &account).await {
            let mut page = Page {
                cards: Cards::of(gateway.bus.clone()),
                gateway,
                client,
                account,
                visitor,
                socket,
                silent: 0,
                place,
            };

            page.converse().await;
        }

        metrics::gauge!("nexus_adapter_webchat_sockets").decrement(1.0);
    }))
}

/// Waits for the page's `hello`. Returns `None` if it does not come in time, or has no valid key.
async fn greet(mut socket: WebSocket, account: &str) -> Option<(WebSocket, String)> {
    let first = tokio::time::timeout(HELLO_WITHIN, socket.recv()).await.ok()??;
    let text = match first.ok()? {
        Message::Text(text) => text,
        Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return None,
    };

    let visitor = match protocol::read(&text) {
        Ok(FromPage::Hello { key }) => protocol::visitor(account, &key).map_err(|detail| (detail, "key")),
        Ok(FromPage::Message { .. } | FromPage::Claim { .. } | FromPage::Watch { .. }) => {
            Err(("expected `hello` first".to_owned(), "message"))
        }
        Err(wrong) => Err(wrong),
    };

    match visitor {
        Ok(visitor) => Some((socket, visitor)),
        Err((detail, place)) => {
            let error = Refusal::Malformed { detail, place }.describe();
            tracing::info!(%error, "chat page is turned away");
            let words = serde_json::to_string(&ToPage::Error { id: None, error }).ok()?;

            // Either the page reads why, or it has gone.
            let _ = tokio::time::timeout(SEND_WITHIN, socket.send(Message::Text(words.into()))).await;
            let close = CloseFrame {
                code: close_code::POLICY,
                reason: "no key".into(),
            };

            let _ = tokio::time::timeout(SEND_WITHIN, socket.send(Message::Close(Some(close)))).await;
            None
        }
    }
}

/// The page's connection has ended.
struct Gone;

/// An open page.
struct Page {
    gateway: Gateway,
    client: Client,
    account: String,
    visitor: String,
    socket: WebSocket,
    silent: u32,
    place: Share,
    cards: Cards,
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

    /// Carries messages both ways until one side ends.
    async fn exchange(&mut self, parts: &mut CoreSubscription) -> Result<std::convert::Infallible, Gone> {
        let (account, visitor) = (self.account.clone(), self.visitor.clone());
        self.say(&ToPage::Ready {
            account: &account,
            peer: &visitor,
        })
        .await?;

        let items = history(&self.gateway, &account, &visitor).await;
        self.say(&ToPage::History { items }).await?;

        let (shutdown, leave) = (self.gateway.shutdown.clone(), self.place.leave().clone());
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
                decided = self.cards.next() => match decided {
                    Some(cards::Decided { approval, status }) => {
                        self.say(&ToPage::Decided { approval: &approval, status }).await?;
                    }
                    None => return Err(Gone),
                },
                () = pause(PING_EVERY) => self.ping().await?,
                () = shutdown.requested() => return Err(Gone),
                () = leave.requested() => return Err(Gone),
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

        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            self.place.heard(self.gateway.clock.monotonic());
        }

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

    /// Handles a text of the page. A message becomes an event, and is confirmed once it is durable.
    async fn take(&mut self, text: &str) -> Result<(), Gone> {
        let (id, text) = match protocol::read(text) {
            Ok(FromPage::Message { id, text }) => (id, text),
            Ok(FromPage::Claim { link }) => return self.claim(&link).await,
            Ok(FromPage::Watch { cards }) => {
                self.cards.watch(cards).await;
                return Ok(());
            }
            Ok(FromPage::Hello { .. }) => {
                let detail = "`hello` was said already".to_owned();
                return self
                    .refuse(
                        None,
                        &Refusal::Malformed {
                            detail,
                            place: "message",
                        },
                    )
                    .await;
            }
            Err((detail, place)) => return self.refuse(None, &Refusal::Malformed { detail, place }).await,
        };

        if let Err(refusal) = self.gateway.paced(self.client) {
            return self.refuse(Some(&id), &refusal).await;
        }

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

    /// Makes this page the owner's, if `link` is one that nobody else used.
    async fn claim(&mut self, link: &str) -> Result<(), Gone> {
        if let Err(refusal) = self.gateway.paced(self.client) {
            return self.refuse(None, &refusal).await;
        }

        let visitor = Visitor {
            account: self.account.clone(),
            id: self.visitor.clone(),
        };

        match owner::claim(&self.gateway.bus, link, &visitor, self.gateway.clock.now()).await {
            Ok(()) => {
                tracing::warn!(
                    peer = self.visitor,
                    account = self.account,
                    "chat page became the owner's by its link"
                );
                self.say(&ToPage::Owner).await
            }
            Err(error) => self.refuse(None, &Refusal::OwnerLink(error)).await,
        }
    }

    async fn refuse(&mut self, id: Option<&str>, refusal: &Refusal) -> Result<(), Gone> {
        let error = refusal.describe();
        tracing::info!(peer = self.visitor, id, %error, "chat message is refused");
        self.say(&ToPage::Error { id, error }).await
    }

    /// Sends a part to the page, and confirms it to delivery-svc.
    async fn forward(&mut self, message: CoreMessage) -> Result<(), Gone> {
        let part = match serde_json::from_slice(&message.payload) {
            Ok(ForPage::Part(part)) => part,
            Ok(ForPage::Partial(partial)) => return self.say(&ToPage::Partial(&partial)).await,
            Ok(ForPage::Working(working)) => return self.say(&ToPage::Working(&working)).await,
            Ok(ForPage::Away(away)) => return self.say(&ToPage::Away(&away)).await,
            Err(error) => {
                tracing::warn!(
                    event_id = message.headers.event_id(), peer = self.visitor, subject = message.subject, %error,
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

/// The end of the conversation; empty if no hook-svc answers now.
async fn history(gateway: &Gateway, account: &str, visitor: &str) -> Vec<Item> {
    let question = HistoryRequest {
        channel: WEBCHAT.to_owned(),
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
