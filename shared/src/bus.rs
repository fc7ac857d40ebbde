//! The bus: access to NATS JetStream. No module outside this one names `async_nats`.
//!
//! Three rules hold for every operation. A publish is retried with identical bytes until the server stores it or
//! rejects it for good. Every read that a decision depends on goes to the stream's leader. The number of operations in
//! flight is bounded. The streams are listed in [`crate::wire::topology`]. Surprising behaviour of the client and the
//! server is described in `docs/contribute/nats-facts.md`.
//!
//! The rooms inside. Connection: `connect`, `login`, `guarded_connect`, `link`, `connection_count`, `poison_guard`, `header_block`.
//! Topology: `ensure`, `durability`. Messages: `publish`, `message`, `core_message`, `request`, `service`, `object`. Reading:
//! `read`, `stream_info`, `newest`, `pages`, `consume`, `fetch`, `fanout`. Sharing work: `claim`, `partition`, `floor`,
//! `slot_lease`, `task_lease`.
//! KV: `kv`, `writer`, `breakers`. Losses by a restore: `position`, `witness`, `letter_witness`, `held`, `restored_replies`, `swept`,
//! `snapshot`. Records: `ledger`, `dead_letter`. Time: `server_clock`, `pulse`.

mod account_lease;
mod breakers;
pub mod claim;
mod connect;
mod connection_count;
mod consume;
mod core_message;
pub mod dead_letter;
mod durability;
mod ensure;
mod error;
mod fanout;
mod fetch;
mod floor;
mod guarded_connect;
mod header_block;
mod held;
mod kv;
pub mod ledger;
mod letter_witness;
mod link;
mod login;
mod message;
mod nats_config;
mod newest;
mod noted_buckets;
mod object;
mod pages;
mod pairings;
pub mod partition;
mod poison_guard;
pub mod position;
mod publish;
mod pulse;
mod read;
mod request;
mod restored_replies;
pub mod server_clock;
mod service;
mod slot_lease;
mod snapshot;
mod stream_info;
mod swept;
mod task_lease;
mod witness;
mod writer;

pub use account_lease::{AccountHold, AccountLease, AccountLeases, AskLeaseError};
pub use breakers::{BreakerChange, BreakerNotes, BreakerScope, BreakerView, KnownBreaker};
pub use connect::Bus;
pub use connection_count::ConnectionCount;
pub use consume::{OrderedReader, PullOptions, PullSettings};
pub use core_message::{CoreMessage, CoreSubscription};
pub use durability::DurabilityPromise;
pub use ensure::{EnsureReport, TopologyDrift};
pub use error::{
    CasError, ConnectBusError, ConsumeError, EnsureTopologyError, PublishError, ReadStreamError, RequestError,
};
pub use fanout::{PassingMessage, StreamTap};
pub use fetch::{FetchMode, MessageFetcher};
pub use held::HoldError;
pub use kv::{Kv, KvEntry, KvEvent, KvPages, KvSurvey, KvWatch};
pub use letter_witness::LetterWitness;
pub use message::{IncomingMessage, StoredMessage};
pub use nats_config::{NatsConfig, StreamDurability};
pub use newest::NewestPage;
pub use object::{BucketSpace, FoundObject, ObjectBucket, StoreObjectError, StoredObject};
pub use pages::StreamPages;
pub use publish::{OutgoingMessage, PublishedMessage};
pub use service::{ServiceHandle, ServiceSpec};
pub use slot_lease::{SlotLeases, SlotRole};
pub use snapshot::{RestoreRightsError, SnapshotError, StreamHead};
pub use stream_info::{ConsumerLag, StreamInfo, StreamState};
pub use task_lease::TaskLease;
pub use witness::{MarkedStream, StreamWitness, WitnessError};
