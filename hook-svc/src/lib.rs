//! hook-svc: evaluates every event against every hook, and makes a dispatch of every fire.
//!
//! An event passes through [`service`] → `owner` (its partition's messages, in order) → `evaluate` (checks for a former
//! evaluation or a duplicate, then all hooks in parallel) → `fire` (order, last fire, [`dispatch`], claim) →
//! [`invocation`] (the record, which is the done-marker) → ack. Hooks come from the [`directory`] into the
//! [`registry`], whose watch makes the [`roster`] that the [`runner`]'s workers hold.

pub mod config;
pub mod dry_run;
pub mod error;
pub mod evaluation;
pub mod health;
pub mod host;
pub mod read_model;
pub mod registry;
pub mod routing;
pub mod runner;
pub mod service;

pub use service::HookService;
