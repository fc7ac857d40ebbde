//! Messages that are not stored: published to the subscribers of that moment.

use bytes::Bytes;
use futures_util::StreamExt as _;

use crate::wire::headers::Headers;

use super::connect::Bus;
use super::message::{header_map, headers_of};

/// Returns whether `subject` is an inbox on which a client awaits a response (`_INBOX.…`; for a user with inboxes of
/// its own `_INBOX_{user}.…`), or stands for one in another account (`_R_.…`, made by the server). A message published
/// there is neither stored nor a command to the server.
pub(super) fn is_inbox(subject: &str) -> bool {
    ["_INBOX.", "_INBOX_", "_R_."]
        .iter()
        .any(|prefix| subject.starts_with(prefix))
}

/// A message that is not stored.
#[derive(Debug, Clone)]
pub struct CoreMessage {
    /// Subject of the publish.
    pub subject: String,
    /// Headers of the message.
    pub headers: Headers,
    /// Payload of the message, encoded.
    pub payload: Bytes,
    /// Inbox on which a response is awaited. If the message names any other subject, no response is awaited.
    pub reply: Option<String>,
}

/// Messages that are not stored, as they arrive; a slow reader loses messages.
#[derive(Debug)]
pub struct CoreSubscription(async_nats::Subscriber);

impl CoreSubscription {
    /// Returns the next message, or `None` once the bus is closed.
    pub async fn next(&mut self) -> Option<CoreMessage> {
        self.0.next().await.map(|message| CoreMessage {
            subject: message.subject.to_string(),
            headers: headers_of(message.headers.as_ref()),
            reply: message
                .reply
                .filter(|reply| is_inbox(reply))
                .map(|reply| reply.to_string()),
            payload: message.payload,
        })
    }
}

impl Bus {
    /// Publishes a message that is not stored and not answered.
    pub async fn core_publish(&self, subject: &str, headers: &Headers, payload: Bytes) {
        self.core_publish_if(subject, headers, payload, || true).await;
    }

    /// Publishes as [`Bus::core_publish`] does, if `may` still holds right before the message leaves. Returns whether
    /// it did. A process that was stopped for a while finds out there that another replica has taken its work over.
    pub async fn core_publish_if(
        &self,
        subject: &str,
        headers: &Headers,
        payload: Bytes,
        may: impl Fn() -> bool + Send,
    ) -> bool {
        self.pulse.wait_awake(&self.client).await;

        // Checked after the wait above: time may have passed there, as it does when a process was stopped.
        if !may() {
            return false;
        }

        let sent = self
            .client
            .publish_with_headers(subject.to_owned(), header_map(headers), payload)
            .await;
        if let Err(error) = sent {
            tracing::warn!(subject, %error, "failed to publish a message");
        }

        true
    }

    /// Subscribes to `subject` (wildcards allowed) from now on, as one of the group `group`: each message goes to one of
    /// its members.
    ///
    /// # Errors
    /// Returns the client's error text if the subject is not valid or the bus is closed.
    pub async fn core_subscribe_group(&self, subject: &str, group: &str) -> Result<CoreSubscription, String> {
        self.client
            .queue_subscribe(subject.to_owned(), group.to_owned())
            .await
            .map(CoreSubscription)
            .map_err(|error| error.to_string())
    }

    /// Subscribes to `subject` (wildcards allowed) from now on.
    ///
    /// # Errors
    /// Returns the client's error text if the subject is not valid or the bus is closed.
    pub async fn core_subscribe(&self, subject: &str) -> Result<CoreSubscription, String> {
        self.client
            .subscribe(subject.to_owned())
            .await
            .map(CoreSubscription)
            .map_err(|error| error.to_string())
    }
}
