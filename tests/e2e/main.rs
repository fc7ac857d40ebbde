//! Stories: a whole Nexus of real processes, one file each.

mod approval;
mod bad_input;
mod browser;
mod commands;
mod demo;
mod dm_reply;
mod drain;
mod first_hook;
mod heartbeat;
mod intent_tools;
mod intents;
mod joints;
mod lost_wakeups;
mod mcp;
mod orders;
mod permissions;
mod sessions;
mod stale_owner;
mod story;
mod streaming;
mod telemetry;
