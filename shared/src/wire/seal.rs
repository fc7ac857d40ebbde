//! Seals: the proof of an event's origin on the bus. *Pure.*
//!
//! A client that publishes to `nexus.event.…` without adapter-svc could write any id, origin and `Nats-Msg-Id`. A
//! publisher that has a key therefore seals its events: the header `Nexus-Seal` is an HMAC over id, content and
//! origin, under the cluster's key (the services) or the edge's own (`[edges.<name>]`). A reader derives the origin
//! again from the stored subject and the seal ([`TrustKeys::admit_event`]), for evaluation and for the read model alike.
//! Without a valid seal the origin is [`EventOrigin::Open`], even if the event claims another one.
//!
//! The message id is an HMAC as well: all messages of a stream share one space for duplicate detection, and only a
//! holder of the key can use the id of a genuine message. Source: `docs/design/trust.md` §1; `docs/security.md`
//! "Seals"; `docs/agents.md` for edges.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::{BASE32_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use super::envelope::{DecodeError, PayloadFormat, decode, encode_payload};
use super::headers::{Headers, SEAL};
use super::subject::{parse_event, token};
use crate::model::event::{AttachmentState, Event, EventDirection, EventId};
use crate::model::origin::{EventOrigin, OPEN, is_sealed_channel};
use crate::model::time::UnixMillis;

/// Minimum length of a decoded key, in bytes.
pub const MIN_KEY_BYTES: usize = 32;
/// First line of the text that a seal signs.
const SEAL_DOMAIN: &str = "nexus-seal/1";
/// First line of the text from which a message id is made.
const ID_DOMAIN: &str = "nexus-id/1";
/// First line of the text that the seal of a posted event signs.
const POST_DOMAIN: &str = "nexus-post/1";
/// Text from which a fingerprint is made.
const FINGERPRINT_DOMAIN: &str = "nexus-fingerprint/1";
/// Number of bytes of the HMAC in a fingerprint.
const FINGERPRINT_BYTES: usize = 8;
/// Number of bytes of the HMAC in a message id: 160 bits, 32 characters.
const ID_BYTES: usize = 20;

/// A key that seals events. Its `Debug` output hides the key.
///
/// ```
/// use shared::model::event::EventId;
/// use shared::model::origin::EventOrigin;
/// use shared::wire::seal::SealKey;
///
/// let key = SealKey::parse("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")?;
/// let id = EventId::parse("http:ci/42")?;
/// let seal = key.seal(&id, b"content", &EventOrigin::System);
/// assert_ne!(seal, key.seal(&id, b"content", &EventOrigin::Open), "the seal covers the origin");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SealKey(Hmac<Sha256>);

/// The reason why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseKeyError {
    /// The text is neither hexadecimal nor base64.
    #[error("expected hexadecimal digits or base64")]
    Encoding,
    /// The key is shorter than [`MIN_KEY_BYTES`]; the value is its length in bytes.
    #[error("expected at least {MIN_KEY_BYTES} bytes, found {0}")]
    Short(usize),
}

impl SealKey {
    /// Parses a key in hexadecimal or base64, of at least [`MIN_KEY_BYTES`].
    ///
    /// # Errors
    /// Returns [`ParseKeyError`], which never contains the text.
    pub fn parse(text: &str) -> Result<Self, ParseKeyError> {
        let text = text.trim();
        let bytes = HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .ok()
            .or_else(|| STANDARD.decode(text).ok())
            .ok_or(ParseKeyError::Encoding)?;

        if bytes.len() < MIN_KEY_BYTES {
            return Err(ParseKeyError::Short(bytes.len()));
        }

        Ok(Self::from_bytes(&bytes))
    }

    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length (RFC 2104 §2)")]
    fn from_bytes(bytes: &[u8]) -> Self {
        Self(Hmac::new_from_slice(bytes).expect("a key of any length"))
    }

    fn start_mac(&self, domain: &str, lines: &[&str]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(domain.as_bytes());
        for line in lines {
            mac.update(b"\n");
            mac.update(line.as_bytes());
        }
        mac
    }

    /// Returns the seal of the event `id` with the encoded `content` and the `origin`: 64 hexadecimal digits.
    ///
    /// The signed text has four lines: `nexus-seal/1`, id, SHA-256 of the content in hexadecimal, origin. None of
    /// them can contain a line break.
    #[must_use]
    pub fn seal(&self, id: &EventId, content: &[u8], origin: &EventOrigin) -> String {
        let mac = self.seal_mac(id, &HEXLOWER.encode(&Sha256::digest(content)), origin);
        HEXLOWER.encode(&mac.finalize().into_bytes())
    }

    fn seal_mac(&self, id: &EventId, content: &str, origin: &EventOrigin) -> Hmac<Sha256> {
        self.start_mac(SEAL_DOMAIN, &[id.as_str(), content, &origin.to_string()])
    }

    /// Returns the code of a posted event with the encoded `content`.
    fn post_mac(&self, content: &[u8]) -> Hmac<Sha256> {
        self.start_mac(POST_DOMAIN, &[&HEXLOWER.encode(&Sha256::digest(content))])
    }

    /// Returns a fingerprint that identifies this key without revealing it: 16 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mac = self.start_mac(FINGERPRINT_DOMAIN, &[]).finalize().into_bytes();
        HEXLOWER.encode(&mac[..FINGERPRINT_BYTES])
    }

    /// Returns the `Nats-Msg-Id` of `event`: the HMAC of its id, and for a changed item of its id and content.
    #[must_use]
    pub fn message_id(&self, event: &Event) -> String {
        let mac = self
            .start_mac(ID_DOMAIN, &[&occurrence_id(event)])
            .finalize()
            .into_bytes();
        BASE32_NOPAD.encode(&mac[..ID_BYTES]).to_ascii_lowercase()
    }
}

// By hand: a key is not printed.
impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(…)")
    }
}

/// Returns the event's id; for a changed item, its id and the hash of its content, so that each change is a message
/// of its own.
fn occurrence_id(event: &Event) -> String {
    match change_hash(event) {
        Some(hash) => format!("{}@{hash}", event.id),
        None => event.id.to_string(),
    }
}

/// Returns the hash that distinguishes a change of an item from the item's other changes, which have the same id:
/// SHA-256 of the event's content, 64 hexadecimal digits. Returns `None` for an event that is not a change.
#[must_use]
pub fn change_hash(event: &Event) -> Option<String> {
    match event.direction {
        EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => {
            return None;
        }
        EventDirection::Updated | EventDirection::Deleted => {}
    }

    let told = Event {
        received_at: UnixMillis(0),
        ..event.clone()
    };

    // The order of keys in an object comes from the source and has no meaning; the order of fields is another in a release
    // that does not know all of them.
    let mut told = serde_json::to_value(told).unwrap_or_default();
    told.sort_all_objects();

    Some(HEXLOWER.encode(&Sha256::digest(encode_payload(&told, PayloadFormat::Cbor))))
}

/// Returns the id under which the event's record is stored: its own, or for a change of a known item one that is made of
/// its content, so that the change is not taken for the first occurrence or for another change. A restored stream reuses
/// sequences, so they are no part of it.
#[must_use]
pub fn record_key(event: &Event) -> EventId {
    let own = change_hash(event).and_then(|hash| EventId::parse(format!("change:{hash}")).ok());
    own.unwrap_or_else(|| event.id.clone())
}

/// A publisher outside the cluster that seals with its own key (`[edges.<name>]`).
#[derive(Debug, Clone)]
pub struct EdgeKey {
    /// The only channel on which it may publish. Its account there is its name.
    pub channel: String,
    /// Key with which it seals.
    pub key: SealKey,
    /// Ids of the persons for whom it may speak; `*` = all.
    pub persons: Vec<String>,
}

/// The keys with which events are sealed and checked.
#[derive(Debug, Clone, Default)]
pub struct TrustKeys {
    cluster: Option<SealKey>,
    former: Vec<SealKey>,
    edges: BTreeMap<String, EdgeKey>,
}

/// The reason why a stored event is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitEventError {
    /// The event names another conversation than its stored subject.
    #[error("event {id}: channel, account or peer differ from the subject {subject}")]
    WrongSubject {
        /// Id of the event.
        id: EventId,
        /// Subject under which it is stored.
        subject: String,
    },
    /// The event has no valid seal, although all publishers of its channel seal.
    #[error("event {id}: channel `{channel}` is reserved for the system; the event has no valid seal")]
    Unsealed {
        /// Id of the event.
        id: EventId,
        /// Channel of the event.
        channel: String,
    },
    /// The id of the event belongs to another source.
    #[error("event {id}: the id must start with `{prefix}` for origin {origin}")]
    ForeignId {
        /// Id of the event.
        id: EventId,
        /// Prefix that the id must have.
        prefix: String,
        /// Origin of the event.
        origin: EventOrigin,
    },
}

impl AdmitEventError {
    /// Returns the reason in the event's dead letter.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::WrongSubject { .. } => "wrong_subject",
            Self::Unsealed { .. } => "unsealed",
            Self::ForeignId { .. } => "foreign_id",
        }
    }
}

/// The reason why a message of `EVENTS` is not accepted as an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadEventError {
    /// The message cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The event is decoded, but refused.
    #[error(transparent)]
    Admit(#[from] AdmitEventError),
}

impl ReadEventError {
    /// Returns the reason in the message's dead letter.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Decode(error) => error.reason(),
            Self::Admit(error) => error.reason(),
        }
    }
}

impl TrustKeys {
    /// Returns keys that seal with `cluster`, and accept events sealed with `cluster` or one of the `former` keys.
    #[must_use]
    pub const fn new(cluster: SealKey, former: Vec<SealKey>) -> Self {
        Self {
            cluster: Some(cluster),
            former,
            edges: BTreeMap::new(),
        }
    }

    /// Returns these keys with `edges` by name. Each edge is trusted for its own events.
    #[must_use]
    pub fn with_edges(mut self, edges: BTreeMap<String, EdgeKey>) -> Self {
        self.edges = edges;
        self
    }

    /// Returns the key with which this process seals; `None` if it has no cluster key.
    #[must_use]
    pub const fn cluster_key(&self) -> Option<&SealKey> {
        self.cluster.as_ref()
    }

    /// Returns the seal of a posted event with the encoded `content`, which waits until it is decided whether its sender may
    /// write: it proves that a service of the cluster took the event, and proves nothing to readers of `EVENTS`. Empty without a
    /// key.
    #[must_use]
    pub fn seal_post(&self, content: &[u8]) -> String {
        let sealed = self
            .cluster
            .as_ref()
            .map(|key| key.post_mac(content).finalize().into_bytes());
        sealed.map(|sealed| HEXLOWER.encode(&sealed)).unwrap_or_default()
    }

    /// Returns whether `seal` is the one of a posted event with the encoded `content`. Former keys count as well.
    #[must_use]
    pub fn is_post(&self, content: &[u8], seal: &str) -> bool {
        let Ok(seal) = HEXLOWER.decode(seal.as_bytes()) else {
            return false;
        };
        let mut keys = self.cluster.iter().chain(&self.former);
        keys.any(|key| key.post_mac(content).verify_slice(&seal).is_ok())
    }

    /// Reads the message of `EVENTS` that is stored under `subject`.
    ///
    /// # Errors
    /// Returns [`ReadEventError`] if the message must become a dead letter.
    pub fn read(&self, subject: &str, headers: &Headers, content: &[u8]) -> Result<Event, ReadEventError> {
        let event = decode(headers, content)?;
        Ok(self.admit_event(subject, headers, content, event)?)
    }

    /// Reads a message like [`TrustKeys::read`], for a message that the server stored at `stored_at`. This is the event's
    /// time of reception unless one of Nexus's services set it, because another publisher's time is not trusted.
    ///
    /// # Errors
    /// Returns the errors of [`TrustKeys::read`].
    pub fn read_stored(
        &self,
        subject: &str,
        headers: &Headers,
        content: &[u8],
        stored_at: UnixMillis,
    ) -> Result<Event, ReadEventError> {
        let mut event = self.read(subject, headers, content)?;
        let is_services = match event.origin {
            EventOrigin::Verified { .. } | EventOrigin::Token { .. } | EventOrigin::System => true,
            EventOrigin::Edge { .. } | EventOrigin::Open => false,
        };
        // Only Nexus's own services are trusted to set the time, and only they store files: another party could name a file
        // that is not its own.
        if !is_services || event.received_at.0 <= 0 {
            event.received_at = stored_at;
        }
        if !is_services {
            for file in &mut event.attachments {
                file.state = AttachmentState::Remote;
            }
        }

        Ok(event)
    }

    /// Returns the event stored under `subject` with `headers` and `content`, with the origin that they prove.
    ///
    /// # Errors
    /// Returns [`AdmitEventError`] if the event is not accepted at all and must become a dead letter.
    pub fn admit_event(
        &self,
        subject: &str,
        headers: &Headers,
        content: &[u8],
        mut event: Event,
    ) -> Result<Event, AdmitEventError> {
        // The subject decides who may have published: an event that names another conversation is not admitted.
        let stored = parse_event(subject).filter(|stored| {
            stored.channel == token(&event.channel)
                && stored.account == token(event.account())
                && stored.peer == token(&event.peer.id)
        });

        if stored.is_none() {
            return Err(AdmitEventError::WrongSubject {
                id: event.id,
                subject: subject.to_owned(),
            });
        }

        let seal = headers.get(SEAL).and_then(|seal| HEXLOWER.decode(seal.as_bytes()).ok());
        if let Some(seal) = seal {
            let hash = HEXLOWER.encode(&Sha256::digest(content));
            let is_of = |key: &SealKey, origin: &EventOrigin| {
                key.seal_mac(&event.id, &hash, origin).verify_slice(&seal).is_ok()
            };

            // Former keys count as well, so that events from before a change of the key stay readable.
            let mut keys = self.cluster.iter().chain(&self.former);
            if keys.any(|key| is_of(key, &event.origin)) {
                return Ok(event);
            }

            // An edge's account on its channel is its own name.
            let edge = self.edges.get_key_value(event.account());
            let edge = edge.filter(|(_, edge)| edge.channel == event.channel);
            if let Some((name, edge)) = edge {
                let origin = EventOrigin::Edge { name: name.clone() };
                if is_of(&edge.key, &origin) {
                    event.origin = origin;
                    event.speaks_for.clone_from(&edge.persons);
                    event.unknown.clear();
                    let prefix = format!("{}:{name}/", edge.channel);
                    return own_id(event, prefix);
                }
            }
        }

        // Without a seal only the open channels are left.
        if is_sealed_channel(&event.channel) {
            let channel = event.channel.clone();
            return Err(AdmitEventError::Unsealed { id: event.id, channel });
        }

        // The event keeps its contents, but none of its claims about where it comes from. A field of a later release may be
        // such a claim.
        event.origin = EventOrigin::Open;
        event.speaks_for.clear();
        event.unknown.clear();
        let prefix = format!("{OPEN}:{}/{}/", event.channel, event.account());

        own_id(event, prefix)
    }
}

/// Returns `event` if its id starts with `prefix`.
fn own_id(mut event: Event, prefix: String) -> Result<Event, AdmitEventError> {
    let own = event.id.as_str().strip_prefix(&prefix);
    if own.is_some_and(|own| !own.is_empty()) {
        // Watermarks are kept by these fields, which the publisher could forge like the id.
        let (adapter, source) = event.id.as_str().split_once(':').unwrap_or_default();
        (event.source_adapter, event.source_id) = (adapter.to_owned(), source.to_owned());
        Ok(event)
    } else {
        Err(AdmitEventError::ForeignId {
            id: event.id,
            prefix,
            origin: event.origin,
        })
    }
}

#[cfg(test)]
mod tests;
