//! The read model's copy in this replica: its snapshots, its log, the persons in it and the questions to it.

pub mod events_api;
pub mod given_up;
pub mod identities;
pub(crate) mod log_size;
pub mod snapshot;
