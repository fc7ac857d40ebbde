//! Configuration: one TOML file, overridden by the environment, checked whole before anything starts.
//!
//! `nexus.toml` has a section per service and three that all share. A process reads the shared ones and its own, and
//! learns of every fault at once: each names its file (or variable), its key and what is expected there.

mod arguments;
mod common;
mod document;
pub(super) mod environment;
mod fault;
mod section;

pub use arguments::{Arguments, ArgumentsError};
pub use common::{Common, FilesConfig, LogFormat, RuntimeConfig, TelemetryConfig};
pub use document::{Document, SECTIONS};
pub use environment::Environment;
pub use fault::Fault;
pub use section::Loaded;
