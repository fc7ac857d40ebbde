//! Environment of the process. No other module reads environment variables.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Prefix of the variables that override a key: `NEXUS__SECTION__KEY`.
const OVERRIDE: &str = "NEXUS__";

/// Environment variables of a process, as they were at its start.
#[derive(Debug, Clone, Default)]
pub struct ConfigEnvironment {
    variables: BTreeMap<String, String>,
}

impl ConfigEnvironment {
    /// Reads the variables of this process; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |bytes: std::ffi::OsString| bytes.to_string_lossy().into_owned();
        std::env::vars_os()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    /// Path of the configuration file, from `NEXUS_CONFIG`.
    #[must_use]
    pub fn config_path(&self) -> Option<PathBuf> {
        self.set("NEXUS_CONFIG").map(PathBuf::from)
    }

    /// Directory in which running processes announce themselves, from `NEXUS_RUN_DIR`.
    #[must_use]
    pub fn run_dir(&self) -> Option<PathBuf> {
        self.set("NEXUS_RUN_DIR").map(PathBuf::from)
    }

    /// Instance name of this replica, from `NEXUS_INSTANCE`.
    #[must_use]
    pub fn instance(&self) -> Option<&str> {
        self.set("NEXUS_INSTANCE")
    }

    /// Log filter that overrides `telemetry.level`, from `NEXUS_LOG`.
    #[must_use]
    pub fn log_filter(&self) -> Option<&str> {
        self.set("NEXUS_LOG")
    }

    /// Name of the host, from `HOSTNAME` (Kubernetes sets it to the pod's name).
    #[must_use]
    pub fn host_name(&self) -> Option<&str> {
        self.set("HOSTNAME")
    }

    /// Returns the overrides: name of the variable, path of the key in lower case, value.
    pub(super) fn overrides(&self) -> impl Iterator<Item = (&str, Vec<String>, &str)> {
        self.variables.iter().filter_map(|(name, value)| {
            let path = name
                .strip_prefix(OVERRIDE)?
                .split("__")
                .map(str::to_ascii_lowercase)
                .collect();
            Some((name.as_str(), path, value.as_str()))
        })
    }

    fn set(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for ConfigEnvironment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self {
            variables: variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }
}

/// Returns one variable of this process, for secrets; `None` if it is not set or not UTF-8.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub(in crate::process) fn read_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
