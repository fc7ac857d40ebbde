//! Common parts of every service's process: configuration, telemetry, health, connection, ordered shutdown.
//!
//! A service implements [`Service`]; its `main` is one call of [`run()`]. It receives everything it needs in a
//! [`ServiceShell`].

mod announce;
pub mod config;
mod connection;
pub mod file_watch;
mod free_port;
mod hardening;
pub mod health;
pub mod identities;
pub mod key;
pub mod lifecycle;
mod memory;
mod name;
mod prepare;
mod run;
pub mod secret;
mod shell;
pub mod spawner;
pub mod status;
pub mod telemetry;
pub mod trace;

pub use config::CommonConfig;
pub use free_port::free_port;
pub use health::{Health, HealthPart};
pub use lifecycle::ShutdownSignal;
/// Allocator of every service's binary. Services allocate small pieces from many threads all the time; the system's
/// allocator took a quarter of hook-svc's processor time (`docs/performance.md`).
pub use mimalloc::MiMalloc as Allocator;
pub use name::ProcessName;
pub use prepare::{PreparedService, inspect_section, prepare_service};
pub use run::{ServiceExit, WARNING, run};
pub use secret::SecretValue;
pub use shell::{Service, ServiceShell};
