//! The bus: the one room that names `async_nats`.
//!
//! What it promises: a publish is retried with identical bytes until the server has it or refuses it for good;
//! what decides is read from the stream's leader; nothing that is in flight is unbounded. Which streams there are
//! is said by [`crate::wire::topology`]. Sharp edges of the client and the server are in `measured.md`.

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
mod leftover;
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
