//! Sessions: one durable turn at a time, on any number of brokers.
//!
//! [`service`] wires the parts together. [`claims`] pulls and keeps claims for free [`slot`]s, [`worker`] runs one
//! claimed session, [`owner`] appends to its ledger and publishes its replies, and [`inbox`] reads its dispatches
//! from [`feed`]'s window. [`sweeper`] finds lost wake-ups, [`quarantine`] parks sessions that make no progress, and
//! [`resets`] notifies the scheduler. [`admin`] serves operators, [`approval`] asks humans, and [`hook_point`] runs
//! the hooks of a turn. The decisions are in pure files: [`session`] (which dispatch runs), [`fold`] (the sum of the
//! ledger), [`turn`] (the entries and the next step of a turn), [`context`] and [`compact`] (the agent's request),
//! [`personas`], [`reset`], [`window`], [`sweep`] and [`settled`].

pub mod absence;
pub mod admin;
pub mod agent;
pub mod approval;
pub mod broker;
pub mod cache;
pub mod child;
pub mod claims;
pub mod compact;
pub mod config;
pub mod context;
pub mod doubt;
pub mod error;
pub mod feed;
pub mod fold;
pub mod hold;
pub mod hook_point;
pub mod inbox;
pub mod live;
pub mod message_text;
pub mod owner;
pub mod personas;
pub mod quarantine;
pub mod reset;
pub mod resets;
#[cfg(test)]
mod sample;
pub mod service;
pub mod session;
pub mod settled;
pub mod slot;
pub mod sweep;
pub mod sweeper;
pub mod tool;
pub mod turn;
pub mod walls;
pub mod window;
pub mod worker;

pub use service::BrokerService;
