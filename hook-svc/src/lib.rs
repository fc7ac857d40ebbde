//! hook-svc: evaluates every event against every hook, and makes a dispatch of every fire.
//!
//! An event passes through [`service`] → [`evaluation`] (its partition's messages in order, a check for a former
//! evaluation or a duplicate, all hooks in parallel, dispatches, and the record, which is the done-marker) → ack. Hooks
//! come from their directory into the [`registry`], whose watch makes the active hooks that the [`runner`]'s workers
//! hold. [`routing`] decides the session of a fire, and [`host`] serves the hooks' calls. [`operator`] answers operators.

pub mod config;
pub mod dry_run;
pub mod error;
pub mod evaluation;
pub mod health;
pub mod host;
pub mod metric_table;
pub mod operator;
pub mod read_model;
pub mod registry;
pub mod routing;
pub mod runner;
pub mod service;

pub use service::HookService;
