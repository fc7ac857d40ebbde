//! adapter-svc: sources. Whatever happens outside becomes a normalised Event on the stream.
//!
//! `source` (webhook, http, webchat) →[`normalize`]→ Event →[`parcel`]→ [`outbox`] →[`publisher`]→ `EVENTS`.
//!
//! [`service`] wires it, top-down as the data goes; [`gateway`] and [`listener`] are the HTTP side of it; [`approvals`] takes
//! platforms' callbacks of humans' decisions.

pub mod approvals;
pub mod config;
pub mod error;
pub mod gateway;
pub mod intake;
pub mod lanes;
pub mod listener;
pub mod normalize;
pub mod outbox;
pub mod parcel;
pub mod publisher;
pub mod service;
pub mod source;
pub mod trace;

pub use config::AdapterConfig;
pub use service::AdapterService;
