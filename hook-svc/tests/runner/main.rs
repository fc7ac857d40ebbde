//! The runner's port against real Bun.

mod calls;
mod deaths;
mod examples;
mod files;
mod forged;
mod frozen;
mod hostile;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod jail;
#[cfg(target_os = "linux")]
mod levels;
mod model;
#[cfg(target_os = "linux")]
mod old_kernel;
mod places;
mod pool;
mod reload;
#[cfg(target_os = "linux")]
mod users;
mod verdicts;
