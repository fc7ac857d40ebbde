//! Dead letters: a whole message with the reason for giving it up and the number of attempts. *Pure.*
//!
//! Source: `docs/design/channels.md` §8; `docs/design/wire.md` §3.1 (`DLQ`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::model::time::UnixMillis;

use super::envelope::{MAX_PAYLOAD_BYTES, WireMessage};

/// A whole message that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Name of the service that gave it up.
    pub service: String,
    /// Subject under which it was stored.
    pub subject: String,
    /// Subject to publish it to again: the one on which it first arrived.
    pub redrive_subject: String,
    /// Stream of the message; empty if it was not in a stream.
    pub stream: String,
    /// Sequence of the message in its stream.
    pub sequence: u64,
    /// All headers as name and value.
    pub headers: Vec<(String, String)>,
    /// Whole payload in base64 (RFC 4648 §4), because it may be any bytes.
    pub payload: String,
    /// Typed reason: `malformed`, `newer_schema`, `no_session`, `gave_up`, …
    pub reason: String,
    /// Error in words, for people.
    pub detail: String,
    /// Number of attempts that were made.
    pub attempts: u64,
    /// Time it was given up.
    pub at: UnixMillis,
}

impl DeadLetter {
    /// Returns the bytes of the payload; `None` if it is not valid base64 because the dead letter was altered.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.payload).ok()
    }

    /// Returns `bytes` encoded for [`DeadLetter::payload`].
    #[must_use]
    pub fn encode_payload(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }
}

impl WireMessage for DeadLetter {
    const SCHEMA: &'static str = "dead_letter";
    /// Base64 makes a payload a third longer, and a payload too large to be read becomes a dead letter too.
    const MAX_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;
}
