//! Stories: a whole Nexus of real processes, one file each.

mod dm_reply;
mod lost_wakeups;
mod stale_owner;
mod story;
