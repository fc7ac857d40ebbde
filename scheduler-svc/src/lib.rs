//! Events that are caused by time: ticks and schedules.
//!
//! [`tick`] decides (pure), [`ticker`] publishes. Every replica publishes every tick under the same message id, so no
//! leader is elected. [`intent`] runs the actions that agents request for the future, and [`operator`] answers operators.
#![warn(missing_docs)]

pub mod config;
pub mod intent;
pub mod metric_table;
pub mod operator;
pub mod schedules;
pub mod service;
pub mod tick;
pub mod ticker;
pub mod timer;
pub mod timer_dispatch;

pub use service::SchedulerService;
