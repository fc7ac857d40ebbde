//! The broker against the real server, one story per file.

mod bench;
mod faults;
mod healing;
mod ownership;
mod remote_agent;
mod turns;
