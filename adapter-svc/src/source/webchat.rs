//! Source and channel `webchat`: a chat page, with one WebSocket per open page.
//!
//! A page draws a random key and keeps it. Its first message carries the key, and the visitor's id is the hash of the
//! key. An id that is read in an event, a log or a subject therefore lets no other client speak as that visitor, and a
//! key cannot be guessed. The page that opens the owner's link becomes the owner's ([`owner`]). A page that connects or
//! reconnects is subscribed first and then sent its history, so that no part is lost in between; the page skips the
//! parts that it shows already.
//!
//! A visitor can have any number of conversations. Each one but the first is a thread of the visitor's events with an
//! id that the page draws at random, and has a session of its own. A conversation exists once its first message is
//! stored.

pub mod assets;
pub mod cards;
pub mod history;
pub mod owner;
pub mod owner_api;
pub mod protocol;

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use shared::bus::{CoreMessage, CoreSubscription};
use shared::clock::pause;
use shared::model::owner::ChatVisitor;
use shared::process::trace::consumer_span;
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::subject;
use tracing::Instrument;

use crate::error::RequestRejection;
use crate::gateway::GatewayState;
use crate::gateway::client_address::ClientAddress;
use crate::gateway::shares::PageSlot;
use crate::normalize::{self, ChatMessage};
use crate::trace::accept_span;
use cards::ApprovalCards;
use history::HistoryPage;
use protocol::{ForPage, FromPage, ToPage};

/// Largest WebSocket message of a page, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Size of the buffer into which a page's socket is read, in bytes. It is in memory as long as the page is open; the library's
/// own 128 KiB is for sockets over which much comes.
const READ_BUFFER_BYTES: usize = 4 * 1024;
/// Interval at which a silent page is pinged.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Largest number of pings in a row that may stay unanswered.
const MAX_SILENT_PINGS: u32 = 2;
/// Longest time from the upgrade to the page's `hello`.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for sending one message to a page.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Delays after which a page that has just opened a thread is sent its history again: a part that was sent shortly
/// before may reach the read model only after the first answer.
const HISTORY_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(30)];

/// `GET /webchat/ws`: the WebSocket of an open page.
///
/// # Errors
/// Returns a [`RequestRejection`] before the upgrade if the request comes from another site's page, or if too many pages are
/// open.
pub async fn connect(
    State(gateway): State<GatewayState>,
    client: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, RequestRejection> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // A browser sends its cookies and keys from any page, so another site's page must be refused.
    if !protocol::same_origin(text(header::ORIGIN), text(header::HOST)) {
        let origin = text(header::ORIGIN).unwrap_or_default();
        return Err(RequestRejection::ForeignOrigin(origin.chars().take(128).collect()));
    }

    let account = gateway.webchat.clone().ok_or(RequestRejection::UnknownPath)?;
    // Without a listener of ours there is no client address, so all such pages count as one client.
    let client = client.map_or(ClientAddress([0; 4].into()), |Extension(client)| client);
    let place = gateway
        .sockets
        .take(client.0, gateway.clock.monotonic())
        .ok_or(RequestRejection::Overloaded)?;

    // Bounded before the first message: the page has proven nothing yet.
    let upgrade = upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(async move |socket| {
        metrics::gauge!("nexus_adapter_webchat_sockets").increment(1.0);

        if let Some((socket, visitor, thread)) = await_hello(socket, &account).await {
            let mut page = Page {
                cards: ApprovalCards::new(gateway.bus.clone()),
                gateway,
                client,
                thread: history::named_thread(&visitor, thread),
                opened: false,
                visitor,
                socket,
                silent: 0,
                place,
            };

            page.serve_page().await;
        }

        metrics::gauge!("nexus_adapter_webchat_sockets").decrement(1.0);
    }))
}

/// Waits for the page's `hello`. Returns the socket, the visitor and the thread that the page shows, or `None` if
/// `hello` does not come in time or has no valid key.
async fn await_hello(mut socket: WebSocket, account: &str) -> Option<(WebSocket, ChatVisitor, Option<String>)> {
    // A connection that says nothing must not keep its place.
    let first = tokio::time::timeout(HELLO_WITHIN, socket.recv()).await.ok()??;
    let text = match first.ok()? {
        Message::Text(text) => text,
        Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return None,
    };

    let visitor = match protocol::read(&text) {
        Ok(FromPage::Hello { key, thread }) => protocol::visitor_id(account, &key)
            .map(|id| (id, thread))
            .map_err(|detail| (detail, "key")),
        Ok(
            FromPage::Message { .. }
            | FromPage::Open { .. }
            | FromPage::Earlier { .. }
            | FromPage::Claim { .. }
            | FromPage::Watch { .. },
        ) => Err(("expected `hello` first".to_owned(), "message")),
        Err(wrong) => Err(wrong),
    };

    match visitor {
        Ok((id, thread)) => {
            let account = account.to_owned();
            Some((socket, ChatVisitor { account, id }, thread))
        }
        Err((detail, place)) => {
            let error = RequestRejection::Malformed { detail, place }.to_json();
            tracing::info!(%error, "chat connection rejected");
            let words = serde_json::to_string(&ToPage::Error { id: None, error }).ok()?;

            // Either the page reads the reason, or the connection is gone.
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

/// Marks that the page's connection has ended.
struct Gone;

/// One open page and its connection.
struct Page {
    gateway: GatewayState,
    client: ClientAddress,
    visitor: ChatVisitor,
    /// Thread that the page shows; `None` for the conversation without a thread.
    thread: Option<String>,
    /// Whether the page has opened another thread since its history was last sent.
    opened: bool,
    socket: WebSocket,
    silent: u32,
    place: PageSlot,
    cards: ApprovalCards,
}

impl Page {
    async fn serve_page(&mut self) {
        let subject = subject::webchat(&self.visitor.account, &self.visitor.id);
        match self.gateway.bus.core_subscribe(&subject).await {
            Ok(mut parts) => {
                let Err(Gone) = self.exchange_messages(&mut parts).await;
            }
            Err(error) => tracing::warn!(error, peer = self.visitor.id, "failed to subscribe a chat page"),
        }

        let frame = CloseFrame {
            code: close_code::AWAY,
            reason: "the server is going away".into(),
        };

        // The page may be gone already; it reconnects by itself in either case.
        let _ = tokio::time::timeout(SEND_WITHIN, self.socket.send(Message::Close(Some(frame)))).await;
    }

    /// Carries messages in both directions until one side closes the connection.
    async fn exchange_messages(&mut self, parts: &mut CoreSubscription) -> Result<std::convert::Infallible, Gone> {
        let ChatVisitor { account, id } = self.visitor.clone();
        self.send_to_page(&ToPage::Ready {
            account: &account,
            peer: &id,
        })
        .await?;

        // Before the first message of the page, so that it never shows a gap.
        self.show_history().await?;
        self.list_threads().await?;

        let (shutdown, leave) = (self.gateway.shutdown.clone(), self.place.leave_signal().clone());
        // The read model may lag behind: the history is shown again after a moment.
        let mut again = HISTORY_AGAIN_AFTER.into_iter();
        let mut waits = again.next();
        let recall = pause(waits.unwrap_or_default());
        tokio::pin!(recall);

        loop {
            // The page has opened another thread.
            if std::mem::take(&mut self.opened) {
                self.show_history().await?;
                again = HISTORY_AGAIN_AFTER.into_iter();
                waits = again.next();
                recall.set(pause(waits.unwrap_or_default()));
            }

            tokio::select! {
                () = &mut recall, if waits.is_some() => {
                    self.repeat_history().await?;
                    self.list_threads().await?;
                    waits = again.next();
                    recall.set(pause(waits.unwrap_or_default()));
                }
                said = self.socket.recv() => match said {
                    Some(Ok(message)) => self.handle_message(message).await?,
                    Some(Err(_)) | None => return Err(Gone),
                },
                part = parts.next() => match part {
                    Some(message) => self.forward_part(message).await?,
                    None => return Err(Gone),
                },
                decided = self.cards.next() => match decided {
                    Some(cards::ClosedApproval { approval, status }) => {
                        self.send_to_page(&ToPage::Decided { approval: &approval, status }).await?;
                    }
                    None => return Err(Gone),
                },
                () = pause(PING_EVERY) => self.send_ping().await?,
                () = shutdown.requested() => return Err(Gone),
                () = leave.requested() => return Err(Gone),
            }
        }
    }

    /// Sends the end of the thread that the page shows. An empty history tells the page that there is nothing to wait
    /// for.
    async fn show_history(&mut self) -> Result<(), Gone> {
        let thread = self.thread.clone();
        let page = history::read_page(&self.gateway, &self.visitor, thread.as_deref(), None).await;
        self.say_history(thread.as_deref(), None, page).await
    }

    /// Sends the history of the page's thread again, unless it is empty.
    async fn repeat_history(&mut self) -> Result<(), Gone> {
        let thread = self.thread.clone();
        let page = history::read_page(&self.gateway, &self.visitor, thread.as_deref(), None).await;
        match page.items.is_empty() {
            true => Ok(()),
            false => self.say_history(thread.as_deref(), None, page).await,
        }
    }

    async fn say_history(&mut self, thread: Option<&str>, before: Option<u64>, page: HistoryPage) -> Result<(), Gone> {
        let HistoryPage { items, more } = page;
        self.send_to_page(&ToPage::History {
            thread,
            before,
            more,
            items,
        })
        .await
    }

    /// Sends the list of the visitor's threads if the read model answers.
    async fn list_threads(&mut self) -> Result<(), Gone> {
        match history::threads(&self.gateway, &self.visitor).await {
            Some(items) => self.send_to_page(&ToPage::Threads { items }).await,
            None => Ok(()),
        }
    }

    async fn send_ping(&mut self) -> Result<(), Gone> {
        self.silent += 1;
        if self.silent > MAX_SILENT_PINGS {
            Err(Gone)
        } else {
            self.send(Message::Ping(bytes::Bytes::new())).await
        }
    }

    async fn handle_message(&mut self, message: Message) -> Result<(), Gone> {
        // Anything that arrives shows that the page is still there.
        self.silent = 0;

        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            self.place.note_message(self.gateway.clock.monotonic());
        }

        match message {
            Message::Text(text) => self.take(&text).await,
            Message::Binary(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => self.take(text).await,
                Err(error) => {
                    let detail = format!("invalid UTF-8 at byte {}", error.valid_up_to());
                    self.send_rejection(
                        None,
                        &RequestRejection::Malformed {
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

    /// Handles one text message of the page. A chat message becomes an event and is confirmed to the page once it is
    /// durable.
    async fn take(&mut self, text: &str) -> Result<(), Gone> {
        let (id, thread, text) = match protocol::read(text) {
            Ok(FromPage::Message { id, thread, text }) => (id, history::named_thread(&self.visitor, thread), text),
            Ok(FromPage::Open { thread }) => {
                if let Err(refusal) = self.gateway.check_rate(self.client) {
                    return self.send_rejection(None, &refusal).await;
                }
                self.thread = history::named_thread(&self.visitor, thread);
                self.opened = true;
                return Ok(());
            }
            Ok(FromPage::Earlier { thread, before }) => {
                if let Err(refusal) = self.gateway.check_rate(self.client) {
                    return self.send_rejection(None, &refusal).await;
                }
                let thread = history::named_thread(&self.visitor, thread);
                let page = history::read_page(&self.gateway, &self.visitor, thread.as_deref(), Some(before)).await;
                return self.say_history(thread.as_deref(), Some(before), page).await;
            }
            Ok(FromPage::Claim { link }) => return self.claim_owner(&link).await,
            Ok(FromPage::Watch { cards }) => {
                self.cards.watch_cards(cards).await;
                return Ok(());
            }
            Ok(FromPage::Hello { .. }) => {
                let detail = "`hello` was already sent".to_owned();
                return self
                    .send_rejection(
                        None,
                        &RequestRejection::Malformed {
                            detail,
                            place: "message",
                        },
                    )
                    .await;
            }
            Err((detail, place)) => {
                return self
                    .send_rejection(None, &RequestRejection::Malformed { detail, place })
                    .await;
            }
        };

        self.publish_message(&id, thread.as_deref(), &text).await
    }

    /// Makes an event of a chat message, and confirms it to the page once the event is durable.
    async fn publish_message(&mut self, id: &str, thread: Option<&str>, text: &str) -> Result<(), Gone> {
        // Only messages count here: the other requests count where they are handled.
        if let Err(refusal) = self.gateway.check_rate(self.client) {
            return self.send_rejection(Some(id), &refusal).await;
        }

        let now = self.gateway.clock.now();
        let message = ChatMessage { id, thread, text };
        let event = match normalize::chat_message(&self.visitor.account, &self.visitor.id, message, now) {
            Ok(event) => event,
            Err(error) => return self.send_rejection(Some(id), &error.into()).await,
        };

        // Confirmed to the page only once the event is durable.
        let (span, carrier) = accept_span(&HeaderMap::new());
        let intake = self.gateway.intake.clone();
        let accepted = intake
            .accept_events("webchat", std::slice::from_ref(&event), &carrier)
            .instrument(span)
            .await;
        match accepted {
            Ok(()) => {
                let stored = ToPage::Stored {
                    id,
                    event_id: &event.id,
                };
                self.send_to_page(&stored).await
            }
            Err(error) => self.send_rejection(Some(id), &error.into()).await,
        }
    }

    /// Makes this page the owner's if no other page has used `link`.
    async fn claim_owner(&mut self, link: &str) -> Result<(), Gone> {
        if let Err(refusal) = self.gateway.check_rate(self.client) {
            return self.send_rejection(None, &refusal).await;
        }

        match owner::claim_owner(&self.gateway.bus, link, &self.visitor, self.gateway.clock.now()).await {
            Ok(()) => {
                tracing::warn!(
                    peer = self.visitor.id,
                    account = self.visitor.account,
                    "owner link used: chat page belongs to the owner now"
                );
                self.send_to_page(&ToPage::Owner).await
            }
            Err(error) => self.send_rejection(None, &RequestRejection::OwnerLink(error)).await,
        }
    }

    async fn send_rejection(&mut self, id: Option<&str>, refusal: &RequestRejection) -> Result<(), Gone> {
        let error = refusal.to_json();
        tracing::info!(peer = self.visitor.id, id, %error, "chat message rejected");
        self.send_to_page(&ToPage::Error { id, error }).await
    }

    /// Sends a part to the page and confirms it to delivery-svc.
    async fn forward_part(&mut self, message: CoreMessage) -> Result<(), Gone> {
        let part = match serde_json::from_slice(&message.payload) {
            Ok(ForPage::Part(part)) => part,
            Ok(ForPage::Partial(partial)) => return self.send_to_page(&ToPage::Partial(&partial)).await,
            Ok(ForPage::Working(working)) => return self.send_to_page(&ToPage::Working(&working)).await,
            Ok(ForPage::Away(away)) => return self.send_to_page(&ToPage::Away(&away)).await,
            Err(error) => {
                tracing::warn!(
                    event_id = message.headers.event_id(), peer = self.visitor.id, subject = message.subject, %error,
                    "failed to decode a part for a chat page"
                );
                return Ok(());
            }
        };

        // The trace of the reply ends at the page.
        let span = consumer_span("webchat.forward", &TraceCarrier::read(&message.headers));
        let event_id = part.event_id.clone();

        async {
            self.send_to_page(&ToPage::Part(part.into())).await?;

            // Confirmed after it was written to the page, so that an unread reply is not counted as live.
            if let Some(reply) = &message.reply {
                self.gateway
                    .bus
                    .core_publish(reply, &Headers::new(), bytes::Bytes::from_static(b"{}"))
                    .await;
            }

            tracing::debug!(event_id, peer = self.visitor.id, "part sent to a chat page");
            Ok(())
        }
        .instrument(span)
        .await
    }

    async fn send_to_page(&mut self, words: &ToPage<'_>) -> Result<(), Gone> {
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
