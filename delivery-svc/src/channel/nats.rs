//! Channel `nats`: a part is a JSON message on core subject `nexus.out.<account>.<peer>`.
//!
//! Channels `cli` and `http` are the same under an account of their own name: who posted an event with this machine's token
//! may listen for the answer, and finds it in the trace either way.
//!
//! Core messages are not stored: who wants them listens. The message leaves on the connection on which the delivery's
//! receipt follows, so a stored receipt says that the server had the message first.

use async_trait::async_trait;
use serde::Serialize;
use shared::bus::Bus;
use shared::model::session::SessionRef;
use shared::wire::envelope::{Format, payload};
use shared::wire::headers::{CAUSATION, CONTENT_TYPE, Headers};
use shared::wire::subject;

use super::{Channel, Shipment};
use crate::attempt::Call;
use crate::chunk::{Limit, Unit};

/// The channel's name.
pub const NAME: &str = "nats";

/// Channels of what is posted with this machine's token.
pub const LOCAL: [&str; 2] = ["cli", "http"];

/// Largest text of a part, bytes: escaped as JSON six times as long at worst, it stays below the server's 1 MiB.
pub const MAX_TEXT: Limit = Limit {
    max: 160 * 1024,
    unit: Unit::Bytes,
};

/// A part as it is published.
#[derive(Debug, Serialize)]
struct Published<'a> {
    delivery: String,
    part: u32,
    event_id: &'a str,
    session: &'a SessionRef,
    content: &'a str,
}

/// See the module.
#[derive(Debug)]
pub struct NatsChannel {
    bus: Bus,
    /// The account of every part; none = the reply's own.
    account: Option<&'static str>,
}

impl NatsChannel {
    /// On `bus`.
    #[must_use]
    pub const fn new(bus: Bus) -> Self {
        Self { bus, account: None }
    }

    /// On `bus`, every part under `account`.
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
    fn limit(&self, _account: &str) -> Option<Limit> {
        Some(MAX_TEXT)
    }

    fn lasts(&self) -> bool {
        false
    }

    async fn send(&self, shipment: &Shipment<'_>) -> Call {
        let part = Published {
            delivery: shipment.reply.id.to_string(),
            part: shipment.part.index,
            event_id: shipment.event_id.as_str(),
            session: &shipment.reply.session,
            content: &shipment.part.content,
        };

        let mut headers = Headers::new();
        headers.insert(CONTENT_TYPE, Format::Json.content_type());
        headers.insert(CAUSATION, shipment.reply.causation.event.as_str());
        shipment.carrier.write(&mut headers);
        let to = subject::out(self.account.unwrap_or(shipment.account()), shipment.peer());
        let body = payload(&part, Format::Json);
        let sent = self
            .bus
            .core_publish_if(&to, &headers, body, || shipment.lease.is_live());

        if !sent.await {
            return Call::Withheld;
        }

        Call::Accepted {
            platform_ids: Vec::new(),
            live: None,
        }
    }
}
