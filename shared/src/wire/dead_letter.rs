//! Dead letters: the whole message, why it was given up, and how often it was tried. *Pure.*
//!
//! Source: `docs/design/channels.md` §8; `docs/design/wire.md` §3.1 (`DLQ`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::model::time::UnixMillis;

use super::envelope::{MAX_PAYLOAD_BYTES, Wire};

/// A message that was given up, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Who gave it up.
    pub service: String,
    /// Where it was stored.
    pub subject: String,
    /// Where to publish it again: the subject on which it first came in.
    pub redrive_subject: String,
    /// Its stream; empty where it was on none.
    pub stream: String,
    /// Its sequence there.
    pub sequence: u64,
    /// All its headers.
    pub headers: Vec<(String, String)>,
    /// Its whole payload, base64 (RFC 4648 §4): it may be anything.
    pub payload: String,
    /// `malformed`, `newer_schema`, `no_session`, `gave_up`, …
    pub reason: String,
    /// What went wrong, in words.
    pub detail: String,
    /// How often it was tried.
    pub attempts: u64,
    /// When it was given up.
    pub at: UnixMillis,
}

impl DeadLetter {
    /// The payload's bytes; none where the letter was tampered with.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.payload).ok()
    }

    /// `bytes` as they stand in [`DeadLetter::payload`].
    #[must_use]
    pub fn encode_payload(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }
}

impl Wire for DeadLetter {
    const SCHEMA: &'static str = "dead_letter";
    /// Base64 makes a payload a third longer, and one that is too large to be read is among what ends here.
    const MAX_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;
}
