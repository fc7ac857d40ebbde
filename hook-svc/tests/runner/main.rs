//! The runner's port against real Bun.

mod calls;
mod deaths;
mod examples;
mod pool;
mod reload;
mod verdicts;
