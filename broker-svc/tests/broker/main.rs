//! The broker against the real server, one story per file.

mod approvals;
mod approvals_killed;
mod bench;
mod busy;
mod faults;
mod healing;
mod killed;
mod mcp;
mod models;
mod ownership;
mod programs;
mod remote_agent;
mod sizes;
mod stepping;
mod turns;
mod wishes;
