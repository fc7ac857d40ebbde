//! Ticks: what happens because time passes.
//!
//! [`tick`] decides (pure), [`ticker`] publishes. Every replica publishes every tick under the same message id, so no
//! leader is elected.
#![warn(missing_docs)]

pub mod config;
pub mod service;
pub mod tick;
pub mod ticker;

pub use service::SchedulerService;
