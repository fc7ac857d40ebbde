//! Ticks: what happens because time passes.
//!
//! [`tick`] decides (pure), [`ticker`] publishes. Every replica publishes every tick under the same message id, so no
//! leader is elected.
#![warn(missing_docs)]

pub mod config;
pub mod fired;
pub mod service;
pub mod tick;
pub mod ticker;
pub mod timer;

pub use service::SchedulerService;
