//! Dead letters: messages given up, stored on `DLQ` with their whole payload, the reason and the number of attempts.

use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::metric::letter_reason;
use crate::model::time::UnixMillis;
use crate::wire::dead_letter::DeadLetter;
use crate::wire::envelope::DecodeError;
use crate::wire::headers::Headers;
use crate::wire::subject;

use super::connect::Bus;
use super::error::PublishError;
use super::message::IncomingMessage;
use super::publish::OutgoingMessage;

/// Number of bytes of the payload's hash that a dead letter's id contains.
const HASH_BYTES: usize = 10;

/// Number of deliveries after which a message of a newer release becomes a dead letter: during a rolling update,
/// readers of both releases run.
const NEWER_TRIES: u64 = 5;
/// Pause between these deliveries.
const NEWER_PAUSE: Duration = Duration::from_secs(5);
/// Pause before a message is delivered again whose dead letter could not be stored.
const BURY_AGAIN: Duration = Duration::from_secs(1);

/// Reason why a message becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageVerdict {
    /// One word for the reason: `malformed`, `newer_schema`, `gave_up`, …
    pub reason: String,
    /// One sentence with the details, for people.
    pub detail: String,
}

impl MessageVerdict {
    /// Builds a verdict: `reason` is one word, `detail` one sentence.
    pub fn new(reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            detail: detail.into(),
        }
    }
}

/// Returns the subject on which a stored message was published: stored subjects carry a partition, published ones do
/// not.
#[must_use]
pub fn redrive_subject(subject: &str) -> String {
    for (stored, published) in [("nexus.ev.", "nexus.event."), ("nexus.dl.", "nexus.delivery.")] {
        if let Some((_, rest)) = subject.strip_prefix(stored).and_then(|rest| rest.split_once('.')) {
            return format!("{published}{rest}");
        }
    }
    subject.to_owned()
}

/// Returns the filter for the subject under which a message that is published on `subject` is stored, in any partition.
#[must_use]
pub fn stored_filter(subject: &str) -> String {
    for (published, stored) in [("nexus.event.", "nexus.ev.*."), ("nexus.delivery.", "nexus.dl.*.")] {
        if let Some(rest) = subject.strip_prefix(published) {
            return format!("{stored}{rest}");
        }
    }
    subject.to_owned()
}

impl Bus {
    /// Stores `message` as a dead letter of `service`. The caller must ack or terminate the message afterwards.
    ///
    /// The id of the dead letter consists of the message's stream, its sequence and a hash of its payload, so that a
    /// repetition stores no second one. The hash is needed because a restored stream gives the sequence to another
    /// message.
    ///
    /// # Errors
    /// Returns [`PublishError`] if the server rejects it for good.
    pub async fn dead_letter(
        &self,
        service: &str,
        message: &IncomingMessage,
        verdict: &MessageVerdict,
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

    /// Stores a complete dead letter on the subject of its service.
    ///
    /// # Errors
    /// Returns [`PublishError`] if the server rejects it for good.
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
            reason = %letter.reason, detail = %letter.detail, "message dead-lettered"
        );

        metrics::counter!("nexus_dead_letters_total", "reason" => letter_reason(&letter.reason)).increment(1);
        let out = OutgoingMessage::new(subject::dlq(&letter.service), &letter);
        // Without a stream there is no position, so that the id would not be unique.
        let out = if letter.stream.is_empty() { out } else { out.msg_id(id) };

        self.publish(out).await.map(|_| ())
    }
}

impl IncomingMessage {
    /// Settles a message that cannot be decoded because of `error`. The dead letter of `service` is stored before the
    /// message is terminated. A message of a newer release is first left to a replica that can decode it.
    pub async fn dead_letter(&self, bus: &Bus, service: &str, error: &DecodeError, now: UnixMillis) {
        if matches!(error, DecodeError::NewerSchema { .. }) && self.delivered < NEWER_TRIES {
            return self.nak(Some(NEWER_PAUSE)).await;
        }

        let verdict = MessageVerdict::new(error.reason(), error.to_string());
        match bus.dead_letter(service, self, &verdict, now).await {
            Ok(()) => self.term().await,
            Err(error) => {
                tracing::warn!(
                    service, subject = %self.subject, sequence = self.sequence, event_id = self.headers.event_id(),
                    %error, "failed to write a dead letter; retrying"
                );
                self.nak(Some(BURY_AGAIN)).await;
            }
        }
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
        assert_eq!(stored_filter("nexus.delivery.nats.a.b"), "nexus.dl.*.nats.a.b");
        assert_eq!(stored_filter("nexus.event.nats.a.b"), "nexus.ev.*.nats.a.b");
        assert_eq!(stored_filter("nexus.claim.5.a.b"), "nexus.claim.5.a.b");
        assert_eq!(
            redrive_subject("nexus.dispatch.5.default.main"),
            "nexus.dispatch.5.default.main"
        );
    }
}
