//! Channel `nats`: each part is a JSON message on the core subject `nexus.out.<account>.<peer>`.
//!
//! The channels `cli` and `http` work in the same way, under an account with their own name: a client that posted an
//! event with this machine's token may subscribe to the reply, and finds it in the trace in any case.
//!
//! Core messages are not stored; clients must be subscribed to receive them. The message is sent on the same
//! connection as the delivery's receipt after it, so a stored receipt proves that the server received the message
//! first.

use async_trait::async_trait;
use serde::Serialize;
use shared::bus::Bus;
use shared::model::session::SessionRef;
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::{CAUSATION, CONTENT_TYPE, Headers};
use shared::wire::subject;

use super::{Channel, ChannelTraits, SendRequest};
use crate::attempt::{CallOutcome, Repetition};
use crate::chunk::{ChunkLimit, LengthUnit};
use crate::plan::PartLayout;

/// Name of the channel.
pub const NAME: &str = "nats";

/// Channels of events that are posted with this machine's token.
pub const LOCAL: [&str; 2] = ["cli", "http"];

/// Maximum text of a part, in bytes: JSON escapes make it at most six times as long, still below the server's 1 MiB.
pub const MAX_TEXT: ChunkLimit = ChunkLimit {
    max: 160 * 1024,
    unit: LengthUnit::Bytes,
};

/// The published form of a part.
#[derive(Debug, Serialize)]
struct Published<'a> {
    delivery: String,
    part: u32,
    event_id: &'a str,
    session: &'a SessionRef,
    content: &'a str,
}

/// Channel `nats`, `cli` or `http`; see the module.
#[derive(Debug)]
pub struct NatsChannel {
    bus: Bus,
    /// Account of every part; `None` = the reply's own account.
    account: Option<&'static str>,
}

impl NatsChannel {
    /// Creates the channel `nats` on `bus`.
    #[must_use]
    pub const fn new(bus: Bus) -> Self {
        Self { bus, account: None }
    }

    /// Creates a channel on `bus` that sends every part under `account`.
    #[must_use]
    pub const fn of_account(bus: Bus, account: &'static str) -> Self {
        Self {
            bus,
            account: Some(account),
        }
    }
}

#[async_trait]
impl Channel for NatsChannel {
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
        let part = Published {
            delivery: shipment.reply.id.to_string(),
            part: shipment.part.index,
            event_id: shipment.event_id.as_str(),
            session: &shipment.reply.session,
            content: &shipment.part.content,
        };

        let mut headers = Headers::new();
        headers.insert(CONTENT_TYPE, PayloadFormat::Json.content_type());
        headers.insert(CAUSATION, shipment.reply.causation.event.as_str());
        shipment.carrier.write(&mut headers);
        let to = subject::out(self.account.unwrap_or(shipment.account()), shipment.peer());
        let body = encode_payload(&part, PayloadFormat::Json);
        // The lease is checked again after the wait for the connection.
        let sent = self
            .bus
            .core_publish_if(&to, &headers, body, || shipment.lease.is_live());

        if !sent.await {
            return CallOutcome::Withheld;
        }

        // A plain subscriber has no id of its own for the message, and does not confirm it.
        CallOutcome::Accepted {
            platform_ids: Vec::new(),
            live: None,
        }
    }
}
