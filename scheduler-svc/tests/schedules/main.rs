//! Schedules against the real server, with real processes where they die.

mod deaths;
mod downtime;
mod heartbeats;
mod orders;
mod unanswered;
mod world;
