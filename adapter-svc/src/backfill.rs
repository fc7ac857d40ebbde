//! Backfills: earlier messages of an account's conversations are read on an operator's order, and stored as events.
//!
//! [`desk`] takes the orders, and writes them to `AUDIT` and then to KV `backfills`. [`runner`] reads the job of an account on
//! one replica, by a lease: a page of a history ([`crate::source::port::history`]) is stored first, and the job's position
//! after that. A replica that takes over reads the last page again, whose events have the same ids. Source:
//! `docs/design/channels.md` §1.11.

pub mod accounts;
pub mod desk;
pub mod job;
pub mod job_file;
pub mod open;
pub mod runner;

/// Prefix of the names of the leases.
pub(crate) const TASK: &str = "backfill";
