//! The section `[adapter.attachments]`: bounds of the files that are fetched.

use serde::{Deserialize, Serialize};

/// Largest file that may be configured, in bytes: each one is in memory while it is fetched.
const MOST_FILE_BYTES: u64 = 100 * 1024 * 1024;
/// Most files that may be fetched at once.
const MOST_AT_ONCE: usize = 64;
/// Longest wait that may be configured, in milliseconds: Slack and people wait for the event.
const MOST_WAIT_MS: u64 = 10_000;

/// The configuration section `[adapter.attachments]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttachmentConfig {
    /// Maximum size of a file, in bytes; larger ones are refused. 0 = no file is fetched.
    pub max_file_bytes: u64,
    /// Maximum size of all files of an event, in bytes; what is beyond is refused.
    pub max_event_bytes: u64,
    /// Number of files that are fetched at once. Each may take `max_file_bytes` of memory.
    pub at_once: usize,
    /// Time for which an event waits for its files, in milliseconds; what is not there by then follows.
    pub wait_ms: u64,
}

impl Default for AttachmentConfig {
    fn default() -> Self {
        Self {
            max_file_bytes: 20 * 1024 * 1024,
            max_event_bytes: 100 * 1024 * 1024,
            at_once: 4,
            wait_ms: 5_000,
        }
    }
}

impl AttachmentConfig {
    /// Returns every error, as `key: expected value`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.max_file_bytes > MOST_FILE_BYTES {
            faults.push(format!("max_file_bytes: expected at most {MOST_FILE_BYTES}"));
        }
        if self.max_event_bytes < self.max_file_bytes {
            faults.push("max_event_bytes: expected at least max_file_bytes".to_owned());
        }
        if self.at_once == 0 || self.at_once > MOST_AT_ONCE {
            faults.push(format!("at_once: expected 1 to {MOST_AT_ONCE}"));
        }
        if self.wait_ms > MOST_WAIT_MS {
            faults.push(format!("wait_ms: expected at most {MOST_WAIT_MS}"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_has_its_fault() {
        assert_eq!(AttachmentConfig::default().find_faults(), Vec::<String>::new());
        let none: AttachmentConfig = toml::from_str("max_file_bytes = 0").expect("a section");
        assert_eq!(none.find_faults(), Vec::<String>::new());
        for (text, key) in [
            (
                "max_file_bytes = 104857601\nmax_event_bytes = 104857601",
                "max_file_bytes",
            ),
            ("max_event_bytes = 1", "max_event_bytes"),
            ("at_once = 0", "at_once"),
            ("at_once = 65", "at_once"),
            ("wait_ms = 10001", "wait_ms"),
        ] {
            let faults = toml::from_str::<AttachmentConfig>(text)
                .expect("a section")
                .find_faults();
            assert_eq!(faults.len(), 1, "{text}: {faults:?}");
            assert!(faults[0].starts_with(key), "{faults:?}");
        }
    }
}
