//! Conversion of a source's data to an [`Event`]. *Pure.*
//!
//! Source: `docs/design/wire.md` §1.1 (ids, fields), `docs/design/channels.md` §1.

use serde_json::{Map, Value, json};
use shared::model::event::{Event, EventId, EventPeer, EventSender, MAX_EVENT_ID_BYTES, ParseEventIdError, PeerKind};
use shared::model::origin::{EVERYBODY, EventOrigin, WEBCHAT, WEBHOOK};
use shared::model::time::UnixMillis;

use crate::source::webhook::endpoint::{SignatureScheme, VerifiedRequest, WebhookEndpoint};
use crate::source::webhook::mapping::{FieldSource, parse_instant};
use crate::source::webhook::payload::{MAX_DEPTH, too_deep};
use crate::source::webhook::signature::sha256_hex;

/// Maximum length of the summary of a webhook, in bytes; the whole body is in `metadata.payload`.
const MAX_SUMMARY_BYTES: usize = 512;

/// Headers that describe a delivery; none of them proves anything.
const KEPT_HEADERS: [&str; 9] = [
    "content-type",
    "svix-id",
    "user-agent",
    "webhook-id",
    "x-event-type",
    "x-github-delivery",
    "x-github-event",
    "x-github-hook-id",
    "x-slack-retry-num",
];

/// Headers that are never kept, even if they are configured: they contain signatures and credentials.
const SECRET_HEADERS: [&str; 7] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "stripe-signature",
    "webhook-signature",
    "x-slack-signature",
    "x-telegram-bot-api-secret-token",
];

/// The reason why data from outside is refused as an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefuseEventError {
    /// The id is not a valid event id.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
    /// The channel belongs to one of Nexus's own services.
    #[error("`{0}` is reserved for the system's own services")]
    Reserved(String),
    /// The channel is not one of the token's.
    #[error(
        "token `{token}` may not post on channel `{channel}`; add it to the token's `channels` in [[adapter.http.tokens]]"
    )]
    Channel {
        /// Name of the token.
        token: String,
        /// Name of the channel.
        channel: String,
    },
    /// A field is outside its bounds.
    #[error("{0}")]
    Bounds(String),
}

/// Returns the events of a webhook: one, or one for each entry of Meta's deliveries. Ids come from the part of the
/// request that the scheme's signature covers ([`WebhookEndpoint::item_id`]), fields from the endpoint's mapping, and the
/// body is in `metadata.payload`.
///
/// # Errors
/// Returns [`RefuseEventError`] if the delivery's id cannot be part of an event id.
pub fn webhook_events(
    endpoint: &WebhookEndpoint,
    delivery: &VerifiedRequest<'_>,
) -> Result<Vec<Event>, RefuseEventError> {
    let Some(entries) = endpoint.split_entries(delivery.payload) else {
        return Ok(vec![webhook_event(endpoint, delivery)?]);
    };

    let one = |payload: &Value| {
        // The entry takes the place of the body, because the platform may send it again in another batch.
        let body = serde_json::to_vec(payload).unwrap_or_default();
        let delivery = VerifiedRequest {
            body: &body,
            payload,
            ..*delivery
        };

        webhook_event(endpoint, &delivery)
    };

    entries.iter().map(one).collect()
}

fn webhook_event(endpoint: &WebhookEndpoint, delivery: &VerifiedRequest<'_>) -> Result<Event, RefuseEventError> {
    let VerifiedRequest {
        headers,
        payload,
        verified,
        now,
        ..
    } = *delivery;

    let mapping = &endpoint.mapping;
    let text = |pick: &Option<FieldSource>| pick.as_ref().and_then(|pick| pick.text(headers, payload));
    let event_type = endpoint.event_type(headers, payload);
    let own = endpoint.item_id(delivery);
    let id = bounded_id(&format!("webhook:{}/", endpoint.name), &own)?;

    let said = mapping
        .timestamp
        .as_ref()
        .and_then(|pick| pick.value(headers, payload))
        .and_then(|v| parse_instant(&v));
    // Without a time in the body, the signed time is closer to the event than the time of reception.
    let at = said
        .or_else(|| verified.timestamp.map(UnixMillis::from_seconds))
        .unwrap_or(now);

    let peer = text(&mapping.peer).unwrap_or_else(|| endpoint.name.clone());

    let channel = endpoint.channel.as_deref().unwrap_or(WEBHOOK);
    let mut event = Event::new(id, channel, &peer, at);
    event.received_at = now;
    event.peer.kind = PeerKind::Channel;
    event.from = EventSender {
        id: text(&mapping.from).unwrap_or_else(|| endpoint.name.clone()),
        display_name: text(&mapping.from_name),
        roles: Vec::new(),
    };

    event.thread_id = text(&mapping.thread);
    event.content = text(&mapping.content)
        .unwrap_or_else(|| webhook_summary(&endpoint.name, event_type.as_deref(), payload))
        .replace('\0', "\u{fffd}");
    event.metadata = webhook_metadata(endpoint, delivery, event_type);

    // Any client may post to an unsigned source, so nothing proves the origin.
    event.origin = if endpoint.scheme == SignatureScheme::Unsigned {
        EventOrigin::Open
    } else {
        EventOrigin::webhook(&endpoint.name)
    };

    if endpoint.persons {
        event.speaks_for = vec![EVERYBODY.to_owned()];
    }

    Ok(event)
}

/// Returns `prefix` and `own` as an event id. If that is too long or contains control characters, `own` is hashed.
pub(crate) fn bounded_id(prefix: &str, own: &str) -> Result<EventId, ParseEventIdError> {
    if prefix.len() + own.len() <= MAX_EVENT_ID_BYTES && !own.contains(char::is_control) {
        return EventId::parse(format!("{prefix}{own}"));
    }
    EventId::parse(format!("{prefix}sha256-{}", sha256_hex(&[own.as_bytes()])))
}

fn webhook_metadata(
    endpoint: &WebhookEndpoint,
    delivery: &VerifiedRequest<'_>,
    event_type: Option<String>,
) -> Map<String, Value> {
    let mut kept = Map::new();
    for name in KEPT_HEADERS
        .into_iter()
        .chain(endpoint.headers.iter().map(String::as_str))
    {
        // Also if they are configured: hooks and agents can read metadata.
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

    // After the mapping, which must not replace these fields.
    metadata.insert("is_group".to_owned(), json!(false));
    metadata.insert("source".to_owned(), json!(endpoint.name));
    metadata.insert("webhook_source".to_owned(), json!(endpoint.name));
    metadata.insert("scheme".to_owned(), json!(endpoint.scheme.name()));
    metadata.insert("headers".to_owned(), Value::Object(kept));
    metadata.insert("payload".to_owned(), delivery.payload.clone());

    if let Some(kind) = event_type {
        metadata.insert("event_type".to_owned(), Value::String(kind));
    }

    if let Some(id) = endpoint.delivery_id(delivery) {
        metadata.insert("delivery_id".to_owned(), Value::String(id));
    }

    metadata
}

/// Returns a line for people: the kind of change, and its source.
fn webhook_summary(source: &str, event_type: Option<&str>, payload: &Value) -> String {
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

/// A chat message of a visitor of the page.
#[derive(Debug, Clone, Copy)]
pub struct ChatMessage<'a> {
    /// Id of the message, chosen by the page.
    pub id: &'a str,
    /// Thread of the visitor's conversation that the message belongs to.
    pub thread: Option<&'a str>,
    /// Text of the message.
    pub text: &'a str,
}

/// Returns the event of a chat message that a visitor of the page wrote.
///
/// # Errors
/// Returns [`RefuseEventError`] if visitor and message cannot be part of an event id.
pub fn chat_message(
    account: &str,
    visitor: &str,
    message: ChatMessage<'_>,
    now: UnixMillis,
) -> Result<Event, RefuseEventError> {
    // The page chooses the message's id, so that a repetition of it is the same event.
    let id = EventId::parse(format!("webchat:{account}/{visitor}/{}", message.id))?;

    let mut event = Event::new(id, WEBCHAT, visitor, now);
    event.account_id = Some(account.to_owned());
    event.from = EventSender {
        id: visitor.to_owned(),
        ..EventSender::default()
    };

    // Each visitor is a conversation of their own.
    event.peer = EventPeer {
        kind: PeerKind::Dm,
        id: visitor.to_owned(),
        ..EventPeer::default()
    };

    event.thread_id = message.thread.map(str::to_owned);
    message.text.clone_into(&mut event.content);
    event.metadata.insert("is_group".to_owned(), json!(false));
    event.origin = EventOrigin::visitor(account, visitor);

    Ok(event)
}

/// Checks the bounds of an event that a client wrote, and sets its time of reception.
///
/// `hops` is kept as the client wrote it, because the client can only shorten its own chain.
///
/// # Errors
/// Returns [`RefuseEventError`] with the field.
pub fn check_posted(mut event: Event, now: UnixMillis) -> Result<Event, RefuseEventError> {
    if event.timestamp.0 < 0 {
        return Err(RefuseEventError::Bounds(
            "timestamp: expected Unix milliseconds".to_owned(),
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
