//! Delivery of replies: replies leave through channels, and the sent parts return as events.
//!
//! `DELIVERIES` → [`partition_worker`] (one per owned partition) → [`keyed_queue`] (order per destination) →
//! [`deliverer`] (one attempt) → [`channel`] (one platform). The deciding code is pure: [`plan`], [`chunk`],
//! [`attempt`], [`account_gate`], [`resume`], [`outbound`], [`policy`], [`keyed_queue`], [`file_parts`].
#![warn(missing_docs)]

pub mod account_gate;
pub mod accounts;
pub mod acknowledgements;
pub mod attempt;
pub mod calls;
pub mod change_events;
pub mod changed_message;
pub mod channel;
pub mod channel_registry;
pub mod chunk;
pub mod config;
pub mod deliverer;
pub mod destination;
pub mod effects;
pub mod error;
#[cfg(test)]
mod examples;
pub mod file_parts;
pub mod former_owners;
pub mod frozen_plan;
pub mod gate_table;
pub mod job;
pub mod keyed_queue;
pub mod lost_replies;
pub mod markdown;
pub mod marked_turns;
pub mod metric_table;
pub mod outbound;
pub mod outgoing_files;
pub mod parked_drain;
mod part_file;
pub mod partition_worker;
pub mod plan;
pub mod policy;
pub mod previews;
pub mod receipts;
pub mod recent_receipts;
mod repair_pause;
mod reply_buttons;
pub mod restore_gate;
pub mod resume;
pub mod sent_events;
pub mod service;
pub mod shown_previews;
pub mod stopped_accounts;
pub mod typing;
pub mod typing_listener;

pub use service::DeliveryService;
