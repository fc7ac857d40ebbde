//! The broker against the real server, one story per file.

mod bench;
mod faults;
mod healing;
mod models;
mod ownership;
mod programs;
mod remote_agent;
mod turns;
