//! Configuration: one TOML file, overridden by the environment, checked completely before anything starts.
//!
//! `nexus.toml` has a section per service and some that several share. A process reads the shared ones and its own,
//! and reports every fault at once: each names its file (or variable), its key and the value expected there.

mod arguments;
mod document;
pub(super) mod environment;
mod fault;
mod section;
mod service_keys;
mod trust;
mod yaml;

pub use arguments::{ArgumentsError, ServiceArguments};
pub use document::{ConfigDocument, SECTIONS};
pub use environment::ConfigEnvironment;
pub use fault::{ConfigFault, KeyFault, file_faults};
pub use section::LoadedSection;
pub use service_keys::{CommonConfig, FilesConfig, LogFormat, RuntimeConfig, TelemetryConfig};
pub use trust::{EdgeConfig, Edges, TrustConfig, edge_faults};
pub use yaml::read_yaml;

/// Maximum length of the name of a webhook source, a token or an edge, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Returns whether `name` can name a webhook source, a token or an edge: letters, digits, `-`, `_` and `.`, at most
/// [`MAX_NAME_BYTES`] of them.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_allowed)
}
