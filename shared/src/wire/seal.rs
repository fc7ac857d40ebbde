//! Seals: which events on the bus are believed about where they come from. *Pure.*
//!
//! A client that may publish to `nexus.event.…` past adapter-svc could write any id, origin and `Nats-Msg-Id`. So a
//! publisher that has a key seals its events: the header `Nexus-Seal` is an HMAC over id, content and origin, under the cluster's key
//! (the services) or the edge's own (`[edges.<name>]`). A reader derives the origin again from the stored subject and the
//! seal ([`Trust::admit`]), for evaluation and for the read model alike; without a valid seal it is
//! [`Origin::Open`], whatever the event says.
//!
//! The message id is an HMAC as well: duplicate detection is one space for the whole stream, and only a holder of the
//! key can take the id of an honest message. Source: `docs/design/trust.md` §1; `docs/security.md` "Seals";
//! `docs/agents.md` for edges.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::{BASE32_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use super::envelope::{DecodeError, Format, decode, payload};
use super::headers::{Headers, SEAL};
use super::subject::{parse_event, token};
use crate::model::event::{Direction, Event, EventId};
use crate::model::origin::{OPEN, Origin, is_sealed_channel};
use crate::model::time::UnixMillis;

/// Fewest bytes of a key, decoded.
pub const MIN_KEY_BYTES: usize = 32;
/// First line of the text that a seal signs.
const SEAL_DOMAIN: &str = "nexus-seal/1";
/// First line of the text that a message id is made of.
const ID_DOMAIN: &str = "nexus-id/1";
/// What a fingerprint is made of.
const FINGERPRINT_DOMAIN: &str = "nexus-fingerprint/1";
/// Bytes of the HMAC that a fingerprint keeps.
const FINGERPRINT_BYTES: usize = 8;
/// Bytes of the HMAC that a message id keeps: 160 bits, 32 characters.
const ID_BYTES: usize = 20;

/// A key that seals. Its `Debug` shows nothing.
#[derive(Clone)]
pub struct SealKey(Hmac<Sha256>);

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseKeyError {
    /// Neither hexadecimal nor base64.
    #[error("expected hexadecimal digits or base64")]
    Encoding,
    /// Shorter than [`MIN_KEY_BYTES`].
    #[error("expected at least {MIN_KEY_BYTES} bytes, {0} found")]
    Short(usize),
}

impl SealKey {
    /// Reads a key in hexadecimal or base64, of at least [`MIN_KEY_BYTES`].
    ///
    /// # Errors
    /// [`ParseKeyError`]; it never repeats the text.
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

        Ok(Self::of(&bytes))
    }

    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length (RFC 2104 §2)")]
    fn of(bytes: &[u8]) -> Self {
        Self(Hmac::new_from_slice(bytes).expect("a key of any length"))
    }

    fn mac(&self, domain: &str, lines: &[&str]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(domain.as_bytes());
        for line in lines {
            mac.update(b"\n");
            mac.update(line.as_bytes());
        }
        mac
    }

    /// The seal of the event `id`, encoded as `content`, which `origin` brought: 64 hexadecimal digits.
    ///
    /// The signed text is four lines: `nexus-seal/1`, id, SHA-256 of the content in hexadecimal, origin. None of them can
    /// hold a line break.
    #[must_use]
    pub fn seal(&self, id: &EventId, content: &[u8], origin: &Origin) -> String {
        let mac = self.seal_mac(id, &HEXLOWER.encode(&Sha256::digest(content)), origin);
        HEXLOWER.encode(&mac.finalize().into_bytes())
    }

    fn seal_mac(&self, id: &EventId, content: &str, origin: &Origin) -> Hmac<Sha256> {
        self.mac(SEAL_DOMAIN, &[id.as_str(), content, &origin.to_string()])
    }

    /// What tells this key from others and nothing about it: 16 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mac = self.mac(FINGERPRINT_DOMAIN, &[]).finalize().into_bytes();
        HEXLOWER.encode(&mac[..FINGERPRINT_BYTES])
    }

    /// The `Nats-Msg-Id` of `event`: the HMAC of its id, and for a changed item of its id and content.
    #[must_use]
    pub fn message_id(&self, event: &Event) -> String {
        let mac = self.mac(ID_DOMAIN, &[&occurrence(event)]).finalize().into_bytes();
        BASE32_NOPAD.encode(&mac[..ID_BYTES]).to_ascii_lowercase()
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(…)")
    }
}

/// The event's id; for a changed item, its id and the hash of what it says now: each change is a message of its own.
fn occurrence(event: &Event) -> String {
    match change_hash(event) {
        Some(hash) => format!("{}@{hash}", event.id),
        None => event.id.to_string(),
    }
}

/// What tells one change of an item from its others, which have the id of the item: SHA-256 of what the event says, 64
/// hexadecimal digits. None for an event that is no change.
#[must_use]
pub fn change_hash(event: &Event) -> Option<String> {
    match event.direction {
        Direction::Received | Direction::Sent | Direction::Observed | Direction::Created => return None,
        Direction::Updated | Direction::Deleted => {}
    }

    let mut told = Event {
        received_at: UnixMillis(0),
        ..event.clone()
    };

    // Objects keep the order of their keys as the source wrote it, which says nothing.
    told.metadata.sort_keys();
    told.metadata.values_mut().for_each(serde_json::Value::sort_all_objects);

    Some(HEXLOWER.encode(&Sha256::digest(payload(&told, Format::Cbor))))
}

/// A publisher outside the cluster that seals with its own key (`[edges.<name>]`).
#[derive(Debug, Clone)]
pub struct Edge {
    /// The only channel on which it may publish. Its account there is its name.
    pub channel: String,
    /// What it seals with.
    pub key: SealKey,
    /// Ids of the persons whom it may speak for; `*` = all.
    pub persons: Vec<String>,
}

/// The keys with which events are sealed and checked.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    cluster: Option<SealKey>,
    former: Vec<SealKey>,
    edges: BTreeMap<String, Edge>,
}

/// Why a stored event is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitEventError {
    /// It names another conversation than the subject under which it is stored.
    #[error("event {id}: its channel, account or peer is not that of the subject {subject}")]
    WrongSubject {
        /// Its id.
        id: EventId,
        /// Where it is stored.
        subject: String,
    },
    /// It has no valid seal, and its channel is one on which all do.
    #[error("event {id}: events of channel `{channel}` are sealed by the system itself, and this one is not")]
    Unsealed {
        /// Its id.
        id: EventId,
        /// Its channel.
        channel: String,
    },
    /// Its id belongs to another source.
    #[error("event {id}: its id must begin with `{prefix}`, because {origin} brought it")]
    ForeignId {
        /// Its id.
        id: EventId,
        /// What it must begin with.
        prefix: String,
        /// Who brought it.
        origin: Origin,
    },
}

impl AdmitEventError {
    /// The reason on its dead letter.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::WrongSubject { .. } => "wrong_subject",
            Self::Unsealed { .. } => "unsealed",
            Self::ForeignId { .. } => "foreign_id",
        }
    }
}

/// Why a message of `EVENTS` is not an event that is believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadEventError {
    /// It cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It is decoded and refused.
    #[error(transparent)]
    Admit(#[from] AdmitEventError),
}

impl ReadEventError {
    /// The reason on its dead letter.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Decode(error) => error.reason(),
            Self::Admit(error) => error.reason(),
        }
    }
}

impl Trust {
    /// Returns keys that seal with `cluster`, and believe what `cluster` or one of the `former` keys sealed.
    #[must_use]
    pub const fn new(cluster: SealKey, former: Vec<SealKey>) -> Self {
        Self {
            cluster: Some(cluster),
            former,
            edges: BTreeMap::new(),
        }
    }

    /// Believes each of `edges`, by its name, about its own events.
    #[must_use]
    pub fn with_edges(mut self, edges: BTreeMap<String, Edge>) -> Self {
        self.edges = edges;
        self
    }

    /// What this process seals with; `None` if it has no key of the cluster.
    #[must_use]
    pub const fn cluster(&self) -> Option<&SealKey> {
        self.cluster.as_ref()
    }

    /// Reads the message of `EVENTS` that is stored under `subject`.
    ///
    /// # Errors
    /// [`ReadEventError`] if the message must become a dead letter.
    pub fn read(&self, subject: &str, headers: &Headers, content: &[u8]) -> Result<Event, ReadEventError> {
        let event = decode(headers, content)?;
        Ok(self.admit(subject, headers, content, event)?)
    }

    /// As [`Trust::read`], of a message that the server stored at `stored_at`. That is when an event was received of which
    /// none of our services says it: its publisher's word would be a stranger's.
    ///
    /// # Errors
    /// As [`Trust::read`].
    pub fn read_stored(
        &self,
        subject: &str,
        headers: &Headers,
        content: &[u8],
        stored_at: UnixMillis,
    ) -> Result<Event, ReadEventError> {
        let mut event = self.read(subject, headers, content)?;
        let is_stamped = match event.origin {
            Origin::Verified { .. } | Origin::Token { .. } | Origin::System => event.received_at.0 > 0,
            Origin::Edge { .. } | Origin::Open => false,
        };
        if !is_stamped {
            event.received_at = stored_at;
        }

        Ok(event)
    }

    /// The event stored under `subject` with `headers` and `content`, with the origin that they prove.
    ///
    /// # Errors
    /// [`AdmitEventError`] if the event must not be believed at all, and must become a dead letter.
    pub fn admit(
        &self,
        subject: &str,
        headers: &Headers,
        content: &[u8],
        mut event: Event,
    ) -> Result<Event, AdmitEventError> {
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
            let is_of =
                |key: &SealKey, origin: &Origin| key.seal_mac(&event.id, &hash, origin).verify_slice(&seal).is_ok();

            let mut keys = self.cluster.iter().chain(&self.former);
            if keys.any(|key| is_of(key, &event.origin)) {
                return Ok(event);
            }

            let edge = self.edges.get_key_value(event.account());
            let edge = edge.filter(|(_, edge)| edge.channel == event.channel);
            if let Some((name, edge)) = edge {
                let origin = Origin::Edge { name: name.clone() };
                if is_of(&edge.key, &origin) {
                    event.origin = origin;
                    event.speaks_for.clone_from(&edge.persons);
                    let prefix = format!("{}:{name}/", edge.channel);
                    return own_id(event, prefix);
                }
            }
        }

        if is_sealed_channel(&event.channel) {
            let channel = event.channel.clone();
            return Err(AdmitEventError::Unsealed { id: event.id, channel });
        }

        event.origin = Origin::Open;
        event.speaks_for.clear();
        let prefix = format!("{OPEN}:{}/{}/", event.channel, event.account());

        own_id(event, prefix)
    }
}

/// `event` where its id begins with `prefix`.
fn own_id(mut event: Event, prefix: String) -> Result<Event, AdmitEventError> {
    let own = event.id.as_str().strip_prefix(&prefix);
    if own.is_some_and(|own| !own.is_empty()) {
        // Watermarks are kept by these, and they are as much a claim as the id.
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
