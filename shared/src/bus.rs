//! The bus: access to NATS JetStream. No module outside this one names `async_nats`.
//!
//! Three rules hold for every operation. A publish is retried with identical bytes until the server stores it or
//! rejects it for good. Every read that a decision depends on goes to the stream's leader. The number of operations in
//! flight is bounded. The streams are listed in [`crate::wire::topology`]. Surprising behaviour of the client and the
//! server is described in `docs/contribute/nats-facts.md`.

mod breakers;
pub mod claim;
mod connect;
mod consume;
pub mod dead_letter;
mod durability;
mod ensure;
mod error;
mod fetch;
mod header_block;
mod held;
mod kv;
pub mod ledger;
mod link;
mod message;
mod object;
mod pages;
pub mod partition;
pub mod position;
mod publish;
mod pulse;
mod read;
mod request;
mod sentry;
pub mod server_clock;
mod service;
mod snapshot;
mod tap;
mod task_lease;
mod witness;
mod writer;

pub use breakers::{BreakerChange, BreakerNotes, BreakerScope, BreakerView, KnownBreaker};
pub use connect::{Bus, Durability, NatsConfig};
pub use consume::{Ordered, Pull, PullOptions};
pub use durability::Promise;
pub use ensure::{Drift, EnsureReport};
pub use error::{
    CasError, ConnectBusError, ConsumeError, EnsureTopologyError, PublishError, ReadStreamError, RequestError,
};
pub use fetch::Fetcher;
pub use held::HoldError;
pub use kv::{Entry, Kv, KvEvent, KvWatch, Survey};
pub use link::Connections;
pub use message::{CoreMessage, CoreSubscription, Incoming, Stored};
pub use object::{Objects, StoreObjectError, StoredObject};
pub use pages::Pages;
pub use publish::{Outgoing, Published};
pub use read::{ConsumerLag, StreamInfo, StreamState};
pub use service::{ServiceHandle, ServiceSpec};
pub use snapshot::{RestoreRightsError, SnapshotError, StreamHead};
pub use tap::{Passing, Tap};
pub use task_lease::TaskLease;
pub use witness::{Marked, Witness, WitnessError};
