//! Schedules: records in KV, one timer each, and events.
//!
//! [`decide`] says what follows from a record and the time (pure); [`keeper`] writes the decision by compare-and-set and
//! then brings it about: first the events of what fires, then the timer of what is next. So the timer of a generation
//! proves that the generation's events are published, and whoever finds it missing brings all of it about again. Events
//! have ids of the schedule and the nominal time: nothing comes of the second.

pub mod api;
pub mod decide;
pub mod event;
pub mod heartbeat;
pub mod jobs;
pub mod keeper;
mod under_way;
