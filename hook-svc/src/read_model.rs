//! The read model: this replica's own copy with its snapshots, its log and the persons in it, the copies of other
//! replicas, and the questions to both.
//!
//! `access` is where evaluation asks. Own copy: `own_copy` (whether this replica keeps one), `snapshot` and `peer_file`
//! (where it starts from), `backlog`, `log_size`, `identities`, `given_up`. Others' copies: `peer_copies` (asking),
//! `peer_api` (the questions), `copy_service` and `file_service` (answering), `first_check` (in batches), `lent_vectors`
//! (their embeddings). `reader_waits` counts evaluations that wait for any of them. `events_api` answers operators,
//! `stand_in` says why it does not.

pub mod access;
pub(crate) mod backlog;
mod copy_service;
pub mod events_api;
mod file_service;
pub(crate) mod first_check;
pub mod given_up;
pub mod identities;
mod lent_vectors;
pub(crate) mod log_size;
pub(crate) mod own_copy;
pub(crate) mod peer_api;
pub(crate) mod peer_copies;
mod peer_file;
mod reader_waits;
pub mod snapshot;
pub(crate) mod stand_in;
