//! Giving a message up: its whole payload, why, and how often it was tried, on `DLQ`.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::model::time::UnixMillis;
use crate::wire::dead_letter::DeadLetter;
use crate::wire::headers::Headers;
use crate::wire::subject;

use super::connect::Bus;
use super::error::PublishError;
use super::message::Incoming;
use super::publish::Outgoing;

/// Bytes of a letter's id that stand for what the message says.
const HASH_BYTES: usize = 10;

/// Why a message is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// A word: `malformed`, `newer_schema`, `gave_up`, …
    pub reason: String,
    /// A sentence.
    pub detail: String,
}

impl Verdict {
    /// `reason` in a word, `detail` in a sentence.
    pub fn new(reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            detail: detail.into(),
        }
    }
}

/// The subject on which a stored message first came in: stored subjects carry a partition, published ones do not.
#[must_use]
pub fn redrive_subject(subject: &str) -> String {
    for (stored, published) in [("nexus.ev.", "nexus.event."), ("nexus.dl.", "nexus.delivery.")] {
        if let Some((_, rest)) = subject.strip_prefix(stored).and_then(|rest| rest.split_once('.')) {
            return format!("{published}{rest}");
        }
    }
    subject.to_owned()
}

impl Bus {
    /// Puts `message` on the dead letters of `service`; acking or ending it is the caller's next step.
    ///
    /// The letter's id is the message's stream and sequence and what it says, so that a repetition makes no second one; a
    /// stream that was put back gives the sequence to another message.
    ///
    /// # Errors
    /// [`PublishError`] where the server refuses it for good.
    pub async fn dead_letter(
        &self,
        service: &str,
        message: &Incoming,
        verdict: &Verdict,
        now: UnixMillis,
    ) -> Result<(), PublishError> {
        let letter = DeadLetter {
            service: service.to_owned(),
            subject: message.subject.clone(),
            redrive_subject: redrive_subject(&message.subject),
            stream: message.stream.clone(),
            sequence: message.sequence,
            headers: message
                .headers
                .iter()
                .map(|(n, v)| (n.to_owned(), v.to_owned()))
                .collect(),
            payload: DeadLetter::encode_payload(&message.payload),
            reason: verdict.reason.clone(),
            detail: verdict.detail.clone(),
            attempts: message.delivered,
            at: now,
        };

        self.dead_letter_record(letter).await
    }

    /// Puts a whole letter on the dead letters of its service.
    ///
    /// # Errors
    /// [`PublishError`] where the server refuses it for good.
    pub async fn dead_letter_record(&self, letter: DeadLetter) -> Result<(), PublishError> {
        let said = Sha256::digest(letter.payload.as_bytes());
        let id = format!(
            "dlq:{}:{}:{}:{}:{}",
            letter.service,
            letter.stream,
            letter.sequence,
            letter.reason,
            HEXLOWER.encode(&said[..HASH_BYTES])
        );

        let headers: Headers = letter.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        tracing::error!(
            service = %letter.service, subject = %letter.subject, sequence = letter.sequence, event_id = headers.event_id(),
            reason = %letter.reason, detail = %letter.detail, "message is given up"
        );

        metrics::counter!("nexus_dead_letters_total", "reason" => letter.reason.clone()).increment(1);
        let out = Outgoing::new(subject::dlq(&letter.service), &letter);
        let out = if letter.stream.is_empty() { out } else { out.msg_id(id) };

        self.publish(out).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redriven_message_goes_where_it_came_in() {
        assert_eq!(
            redrive_subject("nexus.ev.7.webchat.default.v"),
            "nexus.event.webchat.default.v"
        );
        assert_eq!(redrive_subject("nexus.dl.63.nats.a.b"), "nexus.delivery.nats.a.b");
        assert_eq!(
            redrive_subject("nexus.dispatch.default.main"),
            "nexus.dispatch.default.main"
        );
    }
}
