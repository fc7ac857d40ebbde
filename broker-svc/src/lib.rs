//! Sessions: one durable turn at a time, on any number of brokers.
//!
//! [`service`] wires the parts together. [`claims`] pulls and keeps claims for free [`slot`]s, [`worker`] runs one
//! claimed session, [`owner`] appends to its ledger and publishes its replies, and [`inbox`] reads its dispatches
//! from [`feed`]'s window. [`sweeper`] finds lost wake-ups, [`quarantine`] parks sessions that make no progress, and
//! [`resets`] notifies the scheduler. [`admin`] serves operators, [`approval`] asks humans, and [`hook_point`] runs
//! the hooks of a turn. The decisions are in pure files: [`session`] (which dispatch runs), [`fold`] (the sum of the
//! ledger), [`turn`] (the entries and the next step of a turn), [`context`] and [`compact`] (the agent's request),
//! [`personas`], [`reset`], [`window`], [`sweep`] and [`settled`].

pub mod admin;
pub mod agent;
pub mod approval;
pub mod broker;
pub mod child;
pub mod config;
pub mod error;
pub mod hooks;
pub mod ledger;
pub mod queue;
#[cfg(test)]
mod sample;
pub mod service;
pub mod session;
pub mod tool;
pub mod turn;
pub mod worker;

pub use service::BrokerService;
