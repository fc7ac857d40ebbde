//! Dead letters of payloads that cannot be read, so that none is lost without notice. Their number an hour is bounded: a
//! platform that changes its format must not fill the stream.

use std::sync::PoisonError;

use serde_json::{Value, json};
use shared::bus::{Bus, PublishError};
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;

use super::event_store::{SERVICE, SourceFenced, TRY_AGAIN_AFTER};
use super::sink::SourceSink;

/// Maximum number of dead letters of an account in an hour; further ones are counted and logged.
pub const MAX_LETTERS: u32 = 60;
/// Maximum size of a payload that is kept, in bytes of JSON.
const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

/// Returns the dead letter of `payload` of an account, named with its channel, as [`SourceSink::give_up_payload`] makes it.
pub fn unreadable_letter(
    (channel, account): (&str, &str),
    payload: &Value,
    reason: &str,
    detail: &str,
    at: UnixMillis,
) -> DeadLetter {
    let mut bytes = payload.to_string().into_bytes();
    if bytes.len() > MAX_PAYLOAD_BYTES {
        bytes = json!({"left_out_bytes": bytes.len()}).to_string().into_bytes();
    }
    DeadLetter {
        service: SERVICE.to_owned(),
        subject: String::new(),
        redrive_subject: String::new(),
        stream: String::new(),
        sequence: 0,
        headers: Vec::new(),
        payload: DeadLetter::encode_payload(&bytes),
        reason: reason.to_owned(),
        detail: format!("{channel}/{account}: {detail}"),
        attempts: 1,
        at,
    }
}

/// Stores `letter` of an account, named with its channel. Returns whether its payload may be confirmed to the platform.
pub async fn store_letter(bus: &Bus, (channel, account): (&str, &str), letter: DeadLetter) -> bool {
    let Err(error) = bus.dead_letter_record(letter).await else {
        return true;
    };
    // A server that takes no letter of this size never will: the payload must not hold up those behind it.
    let is_hopeless = match &error {
        PublishError::TooLarge { .. } => true,
        PublishError::NoStream { .. }
        | PublishError::WrongLastSequence { .. }
        | PublishError::SubjectFull { .. }
        | PublishError::Rejected { .. }
        | PublishError::Unknown { .. }
        | PublishError::Closed { .. } => false,
    };
    let error = describe_error(&error);
    tracing::error!(channel, account, error, "failed to store a dead letter");
    is_hopeless
}

impl SourceSink {
    /// Makes a dead letter of `payload`, which cannot be read because of `detail`; `reason` is its name. It must contain
    /// nothing that only its reader may see. The letter is not sent again by `nexus dlq redrive`: nothing in Nexus reads it.
    /// When this returns, the source may confirm the payload to the platform.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if this replica does not hold the account any more before the letter is stored.
    pub async fn give_up_payload(&self, payload: &Value, reason: &str, detail: &str) -> Result<(), SourceFenced> {
        let letters = || self.letters().lock().unwrap_or_else(PoisonError::into_inner);
        if letters().is_spent(MAX_LETTERS, self.monotonic()) {
            return Ok(());
        }

        let names = self.names();
        let letter = unreadable_letter(names, payload, reason, detail, self.now());
        while !store_letter(self.bus(), names, letter.clone()).await {
            if !self.is_held() {
                return Err(SourceFenced);
            }
            pause(TRY_AGAIN_AFTER).await;
        }

        // Only a letter that is stored counts: those that failed are no reason to leave out the next one.
        letters().spend(self.monotonic());
        Ok(())
    }
}
