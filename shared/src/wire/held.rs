//! What nobody can tell to be done or undone: held until an operator says which. *Pure.* Source: `trust.md` §2.4.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::dispatch::derived_ulid;
use crate::model::time::UnixMillis;

use super::dead_letter::DeadLetter;
use super::envelope::{MAX_PAYLOAD_BYTES, Wire};

/// The service, and the reason, of the letters that stand beside what is held.
pub const HELD_LETTER: &str = "held";

/// Why a dispatch is not run that is held, as the ledger says it.
pub const DROPPED_AS_HELD: &str = "held";

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldKind {
    /// An order to an agent (stream `DISPATCHES`).
    Dispatch,
    /// A reply on its way out (stream `DELIVERIES`).
    Delivery,
}

impl HeldKind {
    /// As keys and commands name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Delivery => "delivery",
        }
    }
}

/// What is to become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldUntil {
    /// Nobody has said it yet.
    Decided,
    /// It is done once more, even where it may have been done before.
    Redo,
    /// It counts as done.
    Skip,
}

/// A message that is held, whole (KV `held`, key `{kind}.{id}`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What it is.
    pub kind: HeldKind,
    /// Id of the dispatch or of the delivery.
    pub id: Ulid,
    /// Its stream.
    pub stream: String,
    /// Its sequence there.
    pub sequence: u64,
    /// Where to publish it again: the subject on which it first came in.
    pub subject: String,
    /// All its headers.
    pub headers: Vec<(String, String)>,
    /// Its whole payload, base64 (RFC 4648 §4).
    pub payload: String,
    /// Why nobody can tell, in words.
    pub why: String,
    /// Since when it is held.
    pub at: UnixMillis,
    /// What an operator has said.
    pub wanted: HeldUntil,
}

impl Held {
    /// The id of the dispatch that is published where an operator wants the held dispatch `id` done once more: it follows from
    /// that one's, so that the session takes it for a new one, and once.
    #[must_use]
    pub fn redone_id(id: Ulid) -> Ulid {
        let made_at = UnixMillis(i64::try_from(id.timestamp_ms()).unwrap_or(0));
        derived_ulid(made_at, &["redo", &id.to_string()])
    }

    /// Its key in the bucket.
    #[must_use]
    pub fn key(&self) -> String {
        held_key(self.kind, self.id)
    }

    /// It as a letter, whole, for as long as nothing is decided: the bucket may be lost.
    #[must_use]
    pub fn letter(&self) -> DeadLetter {
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

    /// What `letter` keeps that stands beside the message held under `key`; none where that is no such key.
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
            wanted: HeldUntil::Decided,
        })
    }

    /// The payload's bytes; none where the record was tampered with.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.payload).ok()
    }

    /// `bytes` as they stand in [`Held::payload`].
    #[must_use]
    pub fn encode_payload(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }
}

/// The key under which `id` is held.
#[must_use]
pub fn held_key(kind: HeldKind, id: Ulid) -> String {
    format!("{}.{id}", kind.name())
}

impl Wire for Held {
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
            let held = Held {
                kind,
                id: Ulid::from_parts(7, 9),
                stream: "DELIVERIES".to_owned(),
                sequence: 4,
                subject: "nexus.delivery.nats.a.b".to_owned(),
                headers: vec![("Nexus-Schema".to_owned(), "reply/1".to_owned())],
                payload: Held::encode_payload(b"x"),
                why: "nobody can tell".to_owned(),
                at: UnixMillis(5),
                wanted: HeldUntil::Decided,
            };

            assert_eq!(Held::of_letter(&held.key(), held.letter()), Some(held));
        }
    }
}
