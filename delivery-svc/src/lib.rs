//! Delivery of replies: replies leave through channels, and the sent parts return as events.
//!
//! `DELIVERIES` → [`desk`] (one per owned partition) → [`lanes`] (order per destination) → [`deliverer`] (one
//! attempt) → [`channel`] (one platform). The deciding code is pure: [`plan`], [`chunk`], [`attempt`], [`resume`],
//! [`outbound`], [`policy`], [`lanes`].
#![warn(missing_docs)]

pub mod accounts;
pub mod attempt;
pub mod calls;
pub mod channel;
pub mod chunk;
pub mod config;
pub mod deliverer;
pub mod desk;
pub mod destination;
pub mod drain;
pub mod effects;
#[cfg(test)]
mod examples;
pub mod former;
pub mod job;
pub mod lanes;
pub mod lost;
pub mod outbound;
pub mod plan;
pub mod policy;
pub mod receipts;
pub mod restored;
pub mod resume;
pub mod sent;
pub mod service;
pub mod tell;

pub use service::DeliveryService;
