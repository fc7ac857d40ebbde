//! Faults of a configuration. *Pure.*

/// One fault: its place, and what is expected there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Fault {
    /// Path of the file, or name of the environment variable.
    pub source: String,
    /// Dotted path of the key, such as `adapter.sources.github.secret`; empty for the source as a whole.
    pub key: String,
    /// What was found and what is expected.
    pub problem: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.source, self.problem)
        } else {
            write!(f, "{}: {}: {}", self.source, self.key, self.problem)
        }
    }
}
