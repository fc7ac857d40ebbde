//! From what a source says to an [`Event`]. *Pure.*
//!
//! Source: `wire.md` "Event" (ids, fields), `channels.md` "Sources".

use axum::http::HeaderMap;
use serde_json::{Map, Value, json};
use shared::model::approval_api::LINK;
use shared::model::event::{
    Event, EventId, MAX_EVENT_ID_BYTES, OWN_ADAPTERS, ParseEventIdError, Peer, PeerKind, Sender,
};
use shared::model::identity::SELF_ASSERTED;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::source::webhook::endpoint::{Dedupe, Endpoint, Scheme};
use crate::source::webhook::mapping::{Pick, instant};
use crate::source::webhook::payload::{MAX_DEPTH, too_deep};
use crate::source::webhook::signature::{Verified, sha256_hex};

/// Adapters and channels beside [`OWN_ADAPTERS`] by which the installation itself speaks, or vouches for somebody.
const VOUCHED: [&str; 4] = ["cli", LINK, "turn", "approval"];

/// Whether an id's prefix, or a channel, is one that only the system itself gives: nobody outside may speak in its name.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    let mut all = OWN_ADAPTERS.iter().chain(&VOUCHED);
    all.any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Longest short text that is made of a webhook, in bytes; the whole body is in `metadata.payload`.
const MAX_SUMMARY_BYTES: usize = 512;

/// Headers that say what kind of delivery it is; never one that proves anything.
const KEPT_HEADERS: [&str; 8] = [
    "content-type",
    "user-agent",
    "webhook-id",
    "x-event-type",
    "x-github-delivery",
    "x-github-event",
    "x-github-hook-id",
    "x-slack-retry-num",
];

/// Headers that are kept for nobody, even if configured: they carry proofs and credentials.
const SECRET_HEADERS: [&str; 7] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "stripe-signature",
    "webhook-signature",
    "x-slack-signature",
    "x-telegram-bot-api-secret-token",
];

/// Why something from outside cannot be an event of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefuseEventError {
    /// The id is not one.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
    /// Its id, adapter or channel belongs to one of our services.
    #[error("`{0}` belongs to one of the system's own services")]
    Reserved(String),
    /// Outside its bounds.
    #[error("{0}")]
    Bounds(String),
}

/// A request that a source's signature vouches for.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body as it came.
    pub body: &'a [u8],
    /// Its body, read.
    pub payload: &'a Value,
    /// What the signature vouches for.
    pub verified: &'a Verified,
    /// When it came.
    pub now: UnixMillis,
    /// A fresh id, for a delivery that nothing identifies.
    pub fresh: Ulid,
}

/// The event of a webhook: id by `wire.md`, fields by the endpoint's mapping, the body in `metadata.payload`.
///
/// # Errors
/// [`RefuseEventError`] where the delivery's id cannot be part of an event's.
pub fn webhook(endpoint: &Endpoint, delivery: &Delivery<'_>) -> Result<Event, RefuseEventError> {
    let Delivery {
        headers,
        payload,
        verified,
        now,
        ..
    } = *delivery;
    let mapping = &endpoint.mapping;
    let text = |pick: &Option<Pick>| pick.as_ref().and_then(|pick| pick.text(headers, payload));
    let delivery_id = endpoint.delivery_id(verified, headers, payload);
    let event_type = endpoint.event_type(headers, payload);
    let id = webhook_id(endpoint, delivery, delivery_id.as_deref())?;
    let said = mapping
        .timestamp
        .as_ref()
        .and_then(|pick| pick.value(headers, payload))
        .and_then(|v| instant(&v));
    let at = said
        .or_else(|| verified.timestamp.map(UnixMillis::from_seconds))
        .unwrap_or(now);
    let peer = text(&mapping.peer).unwrap_or_else(|| endpoint.name.clone());

    let mut event = Event::new(id, "webhook", &peer, at);
    event.received_at = now;
    event.peer.kind = PeerKind::Channel;
    event.from = Sender {
        id: text(&mapping.from).unwrap_or_else(|| endpoint.name.clone()),
        display_name: text(&mapping.from_name),
        roles: Vec::new(),
    };
    event.thread_id = text(&mapping.thread);
    event.content = text(&mapping.content)
        .unwrap_or_else(|| summary(&endpoint.name, event_type.as_deref(), payload))
        .replace('\0', "\u{fffd}");
    event.metadata = webhook_metadata(endpoint, delivery, delivery_id, event_type);
    if endpoint.scheme == Scheme::Unsigned {
        self_asserted(&mut event);
    }
    Ok(event)
}

fn webhook_id(
    endpoint: &Endpoint,
    delivery: &Delivery<'_>,
    delivery_id: Option<&str>,
) -> Result<EventId, RefuseEventError> {
    let own = match (delivery_id, endpoint.dedupe, delivery.verified.timestamp) {
        (Some(id), _, _) => id.to_owned(),
        (None, Dedupe::Body, _) => sha256_hex(&[delivery.body]),
        (None, Dedupe::Auto, Some(at)) => sha256_hex(&[at.to_string().as_bytes(), b".", delivery.body]),
        (None, Dedupe::Auto, None) => delivery.fresh.to_string(),
    };
    Ok(bounded_id(&format!("webhook:{}/", endpoint.name), &own)?)
}

/// `prefix` and `own` as an event id; where that is too long or holds control characters, `own` is hashed.
pub(crate) fn bounded_id(prefix: &str, own: &str) -> Result<EventId, ParseEventIdError> {
    if prefix.len() + own.len() <= MAX_EVENT_ID_BYTES && !own.contains(char::is_control) {
        return EventId::parse(format!("{prefix}{own}"));
    }
    EventId::parse(format!("{prefix}sha256-{}", sha256_hex(&[own.as_bytes()])))
}

fn webhook_metadata(
    endpoint: &Endpoint,
    delivery: &Delivery<'_>,
    delivery_id: Option<String>,
    event_type: Option<String>,
) -> Map<String, Value> {
    let mut kept = Map::new();
    for name in KEPT_HEADERS
        .into_iter()
        .chain(endpoint.headers.iter().map(String::as_str))
    {
        let secret = SECRET_HEADERS.contains(&name) || name.contains("signature");
        if let Some(Ok(text)) = delivery.headers.get(name).map(|value| value.to_str())
            && !secret
        {
            kept.insert(name.to_owned(), Value::String(text.to_owned()));
        }
    }
    let mut metadata = Map::new();
    for (name, pick) in &endpoint.mapping.metadata {
        if let Some(value) = pick.value(delivery.headers, delivery.payload) {
            metadata.insert(name.clone(), value);
        }
    }
    metadata.insert("is_group".to_owned(), json!(false));
    metadata.insert("source".to_owned(), json!(endpoint.name));
    metadata.insert("scheme".to_owned(), json!(endpoint.scheme.name()));
    metadata.insert("headers".to_owned(), Value::Object(kept));
    metadata.insert("payload".to_owned(), delivery.payload.clone());
    if let Some(kind) = event_type {
        metadata.insert("event_type".to_owned(), Value::String(kind));
    }
    if let Some(id) = delivery_id {
        metadata.insert("delivery_id".to_owned(), Value::String(id));
    }
    metadata
}

/// A line for people: what happened, at which source.
fn summary(source: &str, event_type: Option<&str>, payload: &Value) -> String {
    let text = match payload {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let action = payload.get("action").and_then(Value::as_str);
            let subject = payload.pointer("/repository/full_name").and_then(Value::as_str);
            let words = [Some(source), event_type, action, subject];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
    };
    text[..text.floor_char_boundary(MAX_SUMMARY_BYTES)].to_owned()
}

/// The event of a chat message that a visitor of the page wrote.
///
/// # Errors
/// [`RefuseEventError`] where visitor and message cannot be part of an id.
pub fn chat_message(
    account: &str,
    visitor: &str,
    message: &str,
    text: &str,
    now: UnixMillis,
) -> Result<Event, RefuseEventError> {
    let id = EventId::parse(format!("webchat:{account}/{visitor}/{message}"))?;
    let mut event = Event::new(id, "webchat", visitor, now);
    event.account_id = Some(account.to_owned());
    event.from = Sender {
        id: visitor.to_owned(),
        ..Sender::default()
    };
    event.peer = Peer {
        kind: PeerKind::Dm,
        id: visitor.to_owned(),
        ..Peer::default()
    };
    text.clone_into(&mut event.content);
    event.metadata.insert("is_group".to_owned(), json!(false));
    self_asserted(&mut event);
    Ok(event)
}

/// Says of `event` that nobody proved who sent it.
pub fn self_asserted(event: &mut Event) {
    event.metadata.insert(SELF_ASSERTED.to_owned(), json!(true));
}

/// An event that a client wrote whole: what the adapter adds, and what no client may say.
///
/// `hops` stays what the client says (it can only shorten its own chain); `received_at` is ours.
///
/// # Errors
/// [`RefuseEventError`] names the field.
pub fn outside(mut event: Event, now: UnixMillis) -> Result<Event, RefuseEventError> {
    let (adapter, source) = event.id.as_str().split_once(':').unwrap_or_default();
    for name in [adapter, &event.source_adapter, &event.channel] {
        if is_reserved(name) {
            return Err(RefuseEventError::Reserved(name.to_owned()));
        }
    }
    if event.source_adapter.is_empty() {
        event.source_adapter = adapter.to_owned();
    }
    if event.source_id.is_empty() {
        event.source_id = source.to_owned();
    }
    if event.timestamp.0 < 0 {
        return Err(RefuseEventError::Bounds(
            "timestamp: Unix milliseconds are expected".to_owned(),
        ));
    }
    if event.metadata.values().any(|value| too_deep(value, MAX_DEPTH)) {
        return Err(RefuseEventError::Bounds(format!(
            "metadata: nested deeper than {MAX_DEPTH} levels"
        )));
    }
    if event.content_types.is_empty() {
        event.content_types.push("text".to_owned());
    }
    event.received_at = now;
    Ok(event)
}

#[cfg(test)]
mod tests;
