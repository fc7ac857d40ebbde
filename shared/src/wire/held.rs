//! Held messages: messages whose outcome is unknown, held until an operator decides. *Pure.* Source:
//! `docs/design/trust.md` §2.4.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::dispatch::derived_ulid;
use crate::model::time::UnixMillis;

use super::dead_letter::DeadLetter;
use super::envelope::{MAX_PAYLOAD_BYTES, WireMessage};

/// Service and reason in the dead letters of held messages.
pub const HELD_LETTER: &str = "held";

/// The kind of a held message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldKind {
    /// A dispatch to an agent (stream `DISPATCHES`).
    Dispatch,
    /// A delivery of a reply (stream `DELIVERIES`).
    Delivery,
}

impl HeldKind {
    /// Returns the name in keys and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Delivery => "delivery",
        }
    }
}

/// The decision about a held message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldUntil {
    /// No operator has decided yet.
    Decided,
    /// The work is done again, even if it may have been done before.
    Redo,
    /// The work counts as done.
    Skip,
}

/// A whole message that is held (KV `held`, key `{kind}.{id}`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMessage {
    /// Kind of the message.
    pub kind: HeldKind,
    /// Id of the dispatch or of the delivery.
    pub id: Ulid,
    /// Stream of the message.
    pub stream: String,
    /// Sequence of the message in its stream.
    pub sequence: u64,
    /// Subject to publish it to again: the one on which it first arrived.
    pub subject: String,
    /// All headers as name and value.
    pub headers: Vec<(String, String)>,
    /// Whole payload in base64 (RFC 4648 §4).
    pub payload: String,
    /// Reason why the outcome is unknown, for people.
    pub why: String,
    /// Time since which it is held.
    pub at: UnixMillis,
    /// Decision of an operator.
    pub wanted: HeldUntil,
}

impl HeldMessage {
    /// Returns the id of the dispatch that is published if an operator wants the held dispatch `id` run again. It follows
    /// from the held one's, so that the session takes it for a new one, and once.
    #[must_use]
    pub fn redone_id(id: Ulid) -> Ulid {
        let made_at = UnixMillis(i64::try_from(id.timestamp_ms()).unwrap_or(0));
        derived_ulid(made_at, &["redo", &id.to_string()])
    }

    /// Returns the key in the bucket.
    #[must_use]
    pub fn key(&self) -> String {
        held_key(self.kind, self.id)
    }

    /// Returns the whole message as a dead letter, which is kept until a decision because the bucket may be lost.
    #[must_use]
    pub fn to_dead_letter(&self) -> DeadLetter {
        DeadLetter {
            service: HELD_LETTER.to_owned(),
            subject: self.subject.clone(),
            redrive_subject: self.subject.clone(),
            stream: self.stream.clone(),
            sequence: self.sequence,
            headers: self.headers.clone(),
            payload: self.payload.clone(),
            reason: HELD_LETTER.to_owned(),
            detail: self.why.clone(),
            attempts: 0,
            at: self.at,
        }
    }

    /// Restores the message that was held under `key` from its dead letter; `None` if `key` is not such a key.
    #[must_use]
    pub fn of_letter(key: &str, letter: DeadLetter) -> Option<Self> {
        let (kind, id) = key.split_once('.')?;
        let kinds = [HeldKind::Dispatch, HeldKind::Delivery];

        Some(Self {
            kind: kinds.into_iter().find(|known| known.name() == kind)?,
            id: id.parse().ok()?,
            stream: letter.stream,
            sequence: letter.sequence,
            subject: letter.subject,
            headers: letter.headers,
            payload: letter.payload,
            why: letter.detail,
            at: letter.at,
            // A decision is stored in the bucket alone, and is lost with it.
            wanted: HeldUntil::Decided,
        })
    }

    /// Returns the bytes of the payload; `None` if it is not valid base64 because the record was altered.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.payload).ok()
    }

    /// Returns `bytes` encoded for [`HeldMessage::payload`].
    #[must_use]
    pub fn encode_payload(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }
}

/// Returns the key under which `id` is held.
#[must_use]
pub fn held_key(kind: HeldKind, id: Ulid) -> String {
    format!("{}.{id}", kind.name())
}

impl WireMessage for HeldMessage {
    const SCHEMA: &'static str = "held";
    /// Base64 makes a payload a third longer.
    const MAX_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_keeps_all_of_what_is_held() {
        for kind in [HeldKind::Dispatch, HeldKind::Delivery] {
            let held = HeldMessage {
                kind,
                id: Ulid::from_parts(7, 9),
                stream: "DELIVERIES".to_owned(),
                sequence: 4,
                subject: "nexus.delivery.nats.a.b".to_owned(),
                headers: vec![("Nexus-Schema".to_owned(), "reply/1".to_owned())],
                payload: HeldMessage::encode_payload(b"x"),
                why: "nobody can tell".to_owned(),
                at: UnixMillis(5),
                wanted: HeldUntil::Decided,
            };

            assert_eq!(HeldMessage::of_letter(&held.key(), held.to_dead_letter()), Some(held));
        }
    }
}
