//! The runner's port against real Bun.

mod calls;
mod deaths;
mod examples;
mod hostile;
mod pool;
mod reload;
mod verdicts;
