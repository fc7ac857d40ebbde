//! Sessions: one durable turn at a time, on any number of brokers.
//!
//! [`service`] wires; [`claims`] pulls and keeps claims for free [`slot`]s, [`worker`] runs one claimed session, [`owner`] appends to its
//! ledger and publishes its replies, [`inbox`] reads its dispatches out of what [`feed`] brings, [`sweeper`] finds what was
//! lost and [`quarantine`] parks what goes nowhere; [`resets`] are told to the scheduler; [`admin`] answers what
//! operators ask, [`approval`] asks humans, and [`hook_point`] asks the hooks of a turn. What they decide is in pure
//! files: [`session`] (which dispatch runs), [`fold`] (what the ledger adds up to), [`turn`] (what is appended, and what a
//! turn does next), [`context`] and [`compact`] (what the agent is asked), [`personas`], [`reset`], [`window`], [`sweep`]
//! and [`settled`].

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
