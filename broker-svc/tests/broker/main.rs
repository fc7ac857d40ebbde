//! The broker against the real server, one story per file.

mod approvals;
mod approvals_kept;
mod approvals_killed;
mod approvals_who;
mod bench;
mod busy;
mod commanded;
mod faults;
mod gated;
mod healing;
mod hooked;
mod hooked_agents;
mod killed;
mod mcp;
mod models;
mod observed;
mod ownership;
mod programs;
mod remote_agent;
mod rostered;
mod sizes;
mod stepping;
mod turns;
mod wishes;
