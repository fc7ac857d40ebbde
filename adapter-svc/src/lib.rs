//! adapter-svc: sources, which turn everything that happens outside into normalized Events on the stream.
//!
//! `source` (webhook, http, webchat) →[`normalize`]→ Event →[`encoded_event`]→ [`outbox`] →[`publisher`]→ `EVENTS`.
//!
//! Files of messages are fetched on the way ([`attachments`]). [`service`] connects the parts in the order of the data flow. [`gateway`] and [`listener`] are its HTTP side, and
//! [`approvals`] receives platforms' callbacks with approvers' decisions.

pub mod approvals;
pub mod attachments;
pub mod backfill;
pub mod config;
pub mod encoded_event;
pub mod error;
pub mod gateway;
mod hourly_allowance;
pub mod intake;
pub mod keyed_queue;
pub mod listener;
pub mod metric_table;
pub mod normalize;
pub mod outbox;
pub mod pairing;
pub mod publisher;
pub mod service;
pub mod source;
pub mod trace;

pub use config::AdapterConfig;
pub use service::AdapterService;
