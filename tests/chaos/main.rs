//! Faults that must cost nothing: real processes, real kills, and the streams as witnesses.
//!
//! `NEXUS_CHAOS=long` (`make chaos`) runs the long form.

mod autoscale;
mod cluster;
mod duplicates;
mod hooks;
mod idle_accounts;
mod killer;
mod kills;
mod large_copy;
mod platforms;
mod restore;
mod scale;
mod stopped;
mod upgrade;
