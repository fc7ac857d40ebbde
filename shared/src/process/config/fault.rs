//! Faults of a configuration.

/// One fault: its place, and the value expected there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ConfigFault {
    /// Path of the file, or name of the environment variable.
    pub source: String,
    /// Dotted path of the key, such as `adapter.sources.github.secret`; empty for the source as a whole.
    pub key: String,
    /// The value that was found and the one expected.
    pub problem: String,
}

impl std::fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.source, self.problem)
        } else {
            write!(f, "{}: {}: {}", self.source, self.key, self.problem)
        }
    }
}

/// One fault in a file whose path the caller knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFault {
    /// Dotted path of the key; empty for the file as a whole.
    pub key: String,
    /// The value that was found and the one expected.
    pub problem: String,
}

impl KeyFault {
    /// A fault of `key`.
    #[must_use]
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// A fault of the file as a whole.
    #[must_use]
    pub fn whole(problem: impl Into<String>) -> Self {
        Self::new("", problem)
    }

    /// The fault with the path of its file.
    #[must_use]
    pub fn of_file(self, path: &str) -> ConfigFault {
        ConfigFault {
            source: path.to_owned(),
            key: self.key,
            problem: self.problem,
        }
    }
}

impl std::fmt::Display for KeyFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.key, self.problem)
        }
    }
}

/// The faults of the file at `path`, if there is one, as `faults` finds them in its text; an empty path is an empty text.
/// A file that cannot be read is a fault.
#[must_use]
pub fn file_faults(path: &str, faults: impl FnOnce(&str) -> Vec<KeyFault>) -> Vec<ConfigFault> {
    let found = if path.is_empty() {
        faults("")
    } else {
        match std::fs::read_to_string(path) {
            Ok(text) => faults(&text),
            Err(error) => vec![KeyFault::whole(format!("cannot be read: {error}"))],
        }
    };
    found.into_iter().map(|fault| fault.of_file(path)).collect()
}
