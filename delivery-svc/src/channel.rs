//! The channel port: how a part reaches a platform. Its adapters are below; each is one platform.

pub mod nats;
pub mod signature;
pub mod webchat;
pub mod webhook;

use std::collections::HashMap;

use async_trait::async_trait;
use shared::bus::partition::Lease;
use shared::model::event::{DEFAULT_ACCOUNT, EventId};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;

use crate::attempt::Call;
use crate::chunk::Limit;
use crate::plan::Part;

/// One part on its way to the platform.
#[derive(Debug)]
pub struct Shipment<'a> {
    /// The whole reply.
    pub reply: &'a Reply,
    /// The part.
    pub part: &'a Part,
    /// How many parts the reply has.
    pub parts: u32,
    /// The id that the part's event will have: the same for the same part for ever.
    pub event_id: &'a EventId,
    /// The trace that it belongs to.
    pub carrier: &'a Carrier,
    /// When it is sent.
    pub now: UnixMillis,
    /// Without it nothing may leave.
    pub lease: &'a Lease,
}

impl Shipment<'_> {
    /// Our account on the channel.
    #[must_use]
    pub fn account(&self) -> &str {
        self.reply
            .delivery_context
            .account_id
            .as_deref()
            .unwrap_or(DEFAULT_ACCOUNT)
    }

    /// The conversation's id; empty where there is none.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.reply.delivery_context.peer_id.as_deref().unwrap_or_default()
    }
}

/// A platform.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// The largest part that `account` takes; none = any size.
    fn limit(&self, account: &str) -> Option<Limit>;

    /// Whether a call waits for an answer from elsewhere, so that it may be under way when its process is stopped: then a
    /// receipt says that it was begun, and by whom, before it is made.
    fn lasts(&self) -> bool;

    /// Sends one part; bounded in time.
    async fn send(&self, shipment: &Shipment<'_>) -> Call;
}

/// All channels by name.
#[derive(Default)]
pub struct Channels(HashMap<String, Box<dyn Channel>>);

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Channels {
    /// With `channel` under `name`.
    #[must_use]
    pub fn with(mut self, name: &str, channel: impl Channel) -> Self {
        self.0.insert(name.to_owned(), Box::new(channel));
        self
    }

    /// The channel of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&dyn Channel> {
        self.0.get(name).map(AsRef::as_ref)
    }
}
