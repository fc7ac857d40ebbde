//! Fetching: exactly as many messages of a durable consumer as the caller has room for.
//!
//! [`PullSettings`](super::consume::PullSettings) requests messages ahead, and they grow old in its buffer. Here every
//! message that arrives was asked for. Requests have no heartbeats, because the client's batch loses its wake-up over
//! them. Requests are short instead, and one that the server forgot is ended by our own clock.

use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt as _;

use crate::clock::pause;

use super::connect::Bus;
use super::consume::{MissedMessages, REPAIR_PAUSE};
use super::error::ConsumeError;
use super::message::IncomingMessage;

/// How long the server holds a request.
const FETCH_EXPIRES: Duration = Duration::from_secs(1);
/// How long the server holds the request of a helper, of which there are many more.
const HELP_EXPIRES: Duration = Duration::from_secs(2);
/// Time after its expiry in which the end of a request must arrive; then the request counts as lost.
const FETCH_GRACE: Duration = Duration::from_millis(500);
/// Time in which the answer to a request that is not held must arrive.
const ANSWER_GRACE: Duration = Duration::from_millis(1_500);
/// Priority of a helper's request; those of all others have 0, and a lower number comes first.
const HELP_PRIORITY: usize = 1;

/// How long a request waits for messages, and its place among the requests of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchMode {
    /// The request waits for messages, ahead of all helpers.
    Wait,
    /// The request waits for messages that no other waiting request takes.
    Help,
    /// The request takes the messages that are there, and waits for none.
    Now,
}

impl FetchMode {
    /// Returns the time after which the request counts as lost.
    const fn patience(self) -> Duration {
        match self {
            Self::Wait => FETCH_EXPIRES.saturating_add(FETCH_GRACE),
            Self::Help => HELP_EXPIRES.saturating_add(FETCH_GRACE),
            Self::Now => ANSWER_GRACE,
        }
    }
}

/// A durable consumer from which the caller requests a given number of messages at a time.
pub struct MessageFetcher {
    bus: Bus,
    /// Handle of the consumer; `None` until the first request has found it.
    consumer: Option<PullConsumer>,
    missed: MissedMessages,
    names: (String, String),
    request: Option<OpenRequest>,
}

struct OpenRequest {
    messages: pull::Batch,
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
}

// By hand: the batch under way has no `Debug`.
impl std::fmt::Debug for MessageFetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageFetcher")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// Fetches from the durable `consumer` of `stream`, which is looked up at the first
    /// [`MessageFetcher::request_messages`].
    #[must_use]
    pub fn fetcher(&self, stream: &str, consumer: &str) -> MessageFetcher {
        MessageFetcher {
            bus: self.clone(),
            consumer: None,
            missed: MissedMessages::default(),
            names: (stream.to_owned(), consumer.to_owned()),
            request: None,
        }
    }
}

impl MessageFetcher {
    /// Requests `count` messages, and gives up the rest of an earlier request.
    ///
    /// # Errors
    /// Returns [`ConsumeError`], after a short pause, if the consumer cannot be reached.
    pub async fn request_messages(&mut self, count: usize, mode: FetchMode) -> Result<(), ConsumeError> {
        self.request = None;

        match self.open_request(count, mode).await {
            Ok(request) => {
                self.request = Some(request);
                Ok(())
            }
            Err(detail) => {
                let (stream, consumer) = self.names.clone();
                let error = ConsumeError {
                    stream,
                    consumer,
                    detail,
                };

                // A caller asks in a loop: without the pause, a lost consumer would be asked for without rest.
                self.missed.log_missed(&error);
                pause(REPAIR_PAUSE).await;
                Err(error)
            }
        }
    }

    async fn open_request(&mut self, count: usize, mode: FetchMode) -> Result<OpenRequest, String> {
        let consumer = match &self.consumer {
            Some(known) => known,
            None => {
                let (stream, consumer) = &self.names;
                let found = self.bus.jetstream.get_consumer_from_stream(consumer, stream).await;
                self.consumer.insert(found.map_err(|error| error.to_string())?)
            }
        };

        let group = consumer.cached_info().config.priority_groups.first().cloned();
        let requested = match mode {
            FetchMode::Wait => {
                let batch = consumer.batch().max_messages(count).expires(FETCH_EXPIRES);
                match group {
                    Some(group) => batch.group(group).messages().await,
                    None => batch.messages().await,
                }
            }
            FetchMode::Help | FetchMode::Now => {
                let fetch = consumer.fetch().max_messages(count);
                let fetch = match mode {
                    FetchMode::Help => fetch.expires(HELP_EXPIRES).priority(HELP_PRIORITY),
                    FetchMode::Now | FetchMode::Wait => fetch,
                };

                match group {
                    Some(group) => fetch.group(group).messages().await,
                    None => fetch.messages().await,
                }
            }
        };

        let messages = requested.map_err(|error| error.to_string())?;
        let lost = Box::pin(pause(mode.patience()));

        Ok(OpenRequest { messages, lost })
    }

    /// Returns the next message of those requested, or `None` if no more come and it is time to ask again. The caller
    /// bounds the wait by dropping the future, which loses no message.
    pub async fn next(&mut self) -> Option<IncomingMessage> {
        loop {
            let request = self.request.as_mut()?;
            let next = tokio::select! {
                biased;
                next = request.messages.next() => next,
                () = &mut request.lost => {
                    // The server ends every request in time, unless it has forgotten it.
                    self.look_again("the server has forgotten it");
                    return None;
                }
            };

            match next {
                Some(Ok(message)) => {
                    self.missed = MissedMessages::default();
                    if let Some(incoming) = IncomingMessage::new(message) {
                        return Some(incoming);
                    }
                }
                Some(Err(error)) => {
                    // The pause bounds the requests to a server that fails at once.
                    self.look_again(&error.to_string());
                    pause(REPAIR_PAUSE).await;
                    return None;
                }
                None => {
                    self.missed = MissedMessages::default();
                    // The request has ended as planned: the caller decides whether to ask again.
                    self.request = None;
                    return None;
                }
            }
        }
    }

    /// Drops a request that ended with an error, and the handle of the consumer: it may be gone, so that the next
    /// request looks it up again.
    fn look_again(&mut self, why: &str) {
        tracing::debug!(consumer = %self.names.1, reason = why, "repeating a request");
        self.request = None;
        self.consumer = None;
    }

    /// Gives up the current request; its messages in flight are delivered again after the ack wait.
    pub fn cancel_request(&mut self) {
        self.request = None;
    }
}
