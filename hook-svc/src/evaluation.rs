//! Evaluates events: each partition's messages in order, all hooks at once, dispatches and records.
//!
//! An event passes through `partition_consumer` → `evaluator` → `fire` → `record`, and the record is the done-marker.

mod bot_loops;
mod changed_items;
pub(crate) mod conversations;
pub(crate) mod deferred;
pub mod dispatch;
mod done_markers;
pub(crate) mod evaluator;
pub(crate) mod fire;
pub(crate) mod heartbeat;
mod hook_choice;
pub(crate) mod lost_dispatches;
pub mod order;
pub mod order_gate;
pub(crate) mod partition_consumer;
pub(crate) mod pass_counts;
pub(crate) mod progress;
pub mod record;
pub(crate) mod redelivery_check;
pub(crate) mod retry_budget;
pub(crate) mod selection;
pub(crate) mod task;
pub mod transcripts;

/// Name of the group of replicas that share the partitions of `EVENTS`.
pub(crate) const GROUP: &str = "hook";
