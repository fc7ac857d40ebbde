//! Schedules: records in KV, one timer each, and events.
//!
//! [`decide`] decides the next record and its effects from a record and the time (pure). [`keeper`] writes the decision
//! by compare-and-set and then executes the effects: first the events of the firings, then the timer of the next one.
//! So the timer of a generation proves that the generation's events are published, and a replica that finds it missing
//! executes all effects again. The ids of events are derived from the schedule and the nominal time, so a second
//! publish has no effect.

pub mod api;
pub mod decide;
pub mod event;
pub mod heartbeat;
pub mod jobs;
pub mod keeper;
mod under_way;
