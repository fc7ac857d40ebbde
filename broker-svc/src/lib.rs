//! Sessions: one durable turn at a time, on any number of brokers.
//!
//! [`service`] wires the parts together. [`queue`] brings dispatches to a session: its claims, its inbox, and the sweeper
//! that finds lost wake-ups. [`worker`] runs one claimed session. [`ledger`] appends to the session's ledger and
//! publishes its replies. [`admin`] serves operators, [`approval`] asks humans, and [`hooks`] runs the hooks of a turn.
//! The decisions are in pure files: [`session`] (which dispatch runs), [`ledger::state`] (the sum of the ledger),
//! [`turn`] (the entries and the next step of a turn), [`agent::context`] and [`ledger::compaction`] (the agent's
//! request).

pub mod admin;
pub mod agent;
pub mod approval;
pub mod broker;
pub mod child;
pub mod config;
pub mod error;
pub mod hooks;
pub mod ledger;
pub mod metric_table;
pub mod queue;
#[cfg(test)]
mod sample;
pub mod service;
pub mod session;
pub mod tool;
pub mod turn;
pub mod worker;

pub use service::BrokerService;
