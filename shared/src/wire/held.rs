//! What nobody can tell to be done or undone: held until an operator says which. *Pure.* Source: `trust.md` §2.4.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::time::UnixMillis;

use super::envelope::{MAX_PAYLOAD_BYTES, Wire};

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
    /// Its key in the bucket.
    #[must_use]
    pub fn key(&self) -> String {
        held_key(self.kind, self.id)
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
