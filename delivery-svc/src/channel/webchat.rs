//! Channel `webchat`: each part is a JSON request on the core subject `nexus.webchat.<account>.<peer>`.
//!
//! Every adapter replica receives the request. A replica with an open page of the peer forwards the part to the page
//! and responds. A response means that a page was connected (`live`). Without one, the page will find the part in its
//! history when it connects again. The part counts as delivered in both cases: a closed page loses nothing. Source:
//! `docs/design/channels.md` §2 (webchat).

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use shared::bus::{Bus, RequestError};
use shared::model::approval::ApprovalCard;
use shared::model::time::UnixMillis;
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::{CAUSATION, CONTENT_TYPE, Headers};
use shared::wire::subject;

use super::nats::MAX_TEXT;
use super::{Channel, ChannelTraits, SendRequest};
use crate::attempt::{CallOutcome, Repetition, RequestSent};
use crate::plan::PartLayout;

/// Name of the channel.
pub const NAME: &str = "webchat";

/// The published form of a part.
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
    /// Card from which the page makes buttons.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<ApprovalCard>,
}

/// Channel `webchat`; see the module.
#[derive(Debug)]
pub struct WebchatChannel {
    bus: Bus,
    answer_within: Duration,
}

impl WebchatChannel {
    /// Creates the channel on `bus`, which waits for an open page for at most `answer_within`.
    #[must_use]
    pub const fn new(bus: Bus, answer_within: Duration) -> Self {
        Self { bus, answer_within }
    }
}

#[async_trait]
impl Channel for WebchatChannel {
    fn traits(&self, _account: &str) -> ChannelTraits {
        ChannelTraits {
            layout: PartLayout::markdown(Some(MAX_TEXT)),
            waits_for_remote: false,
            // By `event_id`.
            repetition: Repetition::Recognised,
            finds_parts: false,
            typing_lasts: None,
            previews: false,
            max_file_bytes: None,
        }
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
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
            approval: ApprovalCard::from_interactive(reply.interactive.as_ref()),
        };

        let mut headers = Headers::new();
        headers.insert(CONTENT_TYPE, PayloadFormat::Json.content_type());
        headers.insert(CAUSATION, reply.causation.event.as_str());
        shipment.carrier.write(&mut headers);
        let to = subject::webchat(shipment.account(), shipment.peer());
        // The page confirms the part, or no page is open.
        let answer = self
            .bus
            .request_bytes(
                &to,
                &headers,
                encode_payload(&part, PayloadFormat::Json),
                self.answer_within,
            )
            .await;

        // Without an open page the part counts as sent: the page shows it from the history.
        let live = match answer {
            Ok(_) | Err(RequestError::Service { .. }) => true,
            Err(RequestError::NoResponder { .. } | RequestError::Timeout { .. }) => false,
            Err(error @ RequestError::Answer { .. }) => {
                return CallOutcome::Unreachable {
                    sent: RequestSent::Maybe,
                    reason: error.to_string(),
                };
            }
        };

        CallOutcome::Accepted {
            platform_ids: Vec::new(),
            live: Some(live),
        }
    }
}
