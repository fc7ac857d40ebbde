//! hook-svc: evaluates every event against every hook, and makes a dispatch of every fire.
//!
//! An event passes through [`service`] → `owner` (its partition's messages, in order) → `evaluate` (checks for a former
//! evaluation or a duplicate, then all hooks in parallel) → `fire` (order, last fire, [`dispatch`], claim) →
//! [`invocation`] (the record, which is the done-marker) → ack. Hooks come from the [`directory`] into the
//! [`registry`], whose watch makes the [`roster`] that the [`runner`]'s workers hold.

pub mod admission;
mod agent_files;
mod answers;
pub mod authored;
pub mod bindings;
pub mod breakers;
mod choice;
pub mod config;
mod conversations;
mod course;
mod deferred;
pub mod desk;
pub mod directory;
pub mod dispatch;
mod embed;
pub mod error;
mod evaluate;
pub mod events_api;
pub mod fetch;
mod fire;
pub mod gate;
pub mod given_up;
pub mod header;
mod heartbeat;
pub mod hook_api;
pub mod identities;
mod inherited;
pub mod invocation;
pub mod keeper;
pub mod lab;
pub mod llm;
mod lost;
mod meters;
mod model_log;
pub mod once;
pub mod order;
pub mod origin;
mod owner;
mod passes;
mod patience;
pub mod prefilter;
pub mod registry;
pub mod result;
pub mod rights;
pub mod roster;
pub mod routing;
pub mod runner;
pub mod service;
pub mod snapshot;
mod strays;
pub mod sync;
mod task;
pub mod timers;

pub use service::HookService;
