//! Channel `webchat`: a part is a JSON request on core subject `nexus.webchat.<account>.<peer>`.
//!
//! Every adapter replica hears it; one that holds an open page of the peer forwards it there and answers. An answer
//! means that somebody was looking (`live`); none within the wait, or nobody listening, means that the page will find
//! the part in its history when it comes back. Either way it is delivered: a closed page loses nothing. Source:
//! `channels.md` "Channels" (webchat).

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use shared::bus::{Bus, RequestError};
use shared::model::approval::Card;
use shared::model::time::UnixMillis;
use shared::wire::envelope::{Format, payload};
use shared::wire::headers::{CAUSATION, CONTENT_TYPE, Headers};
use shared::wire::subject;

use super::nats::MAX_TEXT;
use super::{Channel, Shipment};
use crate::attempt::Call;
use crate::chunk::Limit;

/// The channel's name.
pub const NAME: &str = "webchat";

/// A part as it is published.
#[derive(Debug, Serialize)]
struct Published<'a> {
    delivery: String,
    part: u32,
    event_id: &'a str,
    content: &'a str,
    reply_to: &'a str,
    /// Thread of the conversation that it is said in.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    at: UnixMillis,
    /// What the page makes buttons of.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<Card>,
}

/// See the module.
#[derive(Debug)]
pub struct WebchatChannel {
    bus: Bus,
    answer_within: Duration,
}

impl WebchatChannel {
    /// On `bus`, waiting so long for an open page.
    #[must_use]
    pub const fn new(bus: Bus, answer_within: Duration) -> Self {
        Self { bus, answer_within }
    }
}

#[async_trait]
impl Channel for WebchatChannel {
    fn limit(&self, _account: &str) -> Option<Limit> {
        Some(MAX_TEXT)
    }

    fn lasts(&self) -> bool {
        false
    }

    async fn send(&self, shipment: &Shipment<'_>) -> Call {
        let reply = shipment.reply;
        let part = Published {
            delivery: reply.id.to_string(),
            part: shipment.part.index,
            event_id: shipment.event_id.as_str(),
            content: &shipment.part.content,
            reply_to: reply
                .delivery_context
                .reply_to_id
                .as_deref()
                .unwrap_or(reply.causation.event.as_str()),
            thread: reply.delivery_context.thread_id.as_deref(),
            at: shipment.now,
            approval: Card::of(reply.interactive.as_ref()),
        };

        let mut headers = Headers::new();
        headers.insert(CONTENT_TYPE, Format::Json.content_type());
        headers.insert(CAUSATION, reply.causation.event.as_str());
        shipment.carrier.write(&mut headers);
        let to = subject::webchat(shipment.account(), shipment.peer());
        let answer = self
            .bus
            .ask(&to, &headers, payload(&part, Format::Json), self.answer_within)
            .await;

        let live = match answer {
            Ok(_) | Err(RequestError::Service { .. }) => true,
            Err(RequestError::NoResponder { .. } | RequestError::Timeout { .. }) => false,
            Err(error @ RequestError::Answer { .. }) => {
                return Call::Unreachable {
                    reason: error.to_string(),
                };
            }
        };

        Call::Accepted {
            platform_ids: Vec::new(),
            live: Some(live),
        }
    }
}
