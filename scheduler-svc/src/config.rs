//! Section `[scheduler]`.

use serde::{Deserialize, Serialize};

/// Section `[scheduler]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Whether this replica publishes the minute tick.
    pub ticks: bool,
    /// How often the clock is looked at, milliseconds: how late a tick may be after the clock was put forward.
    pub look_every_ms: u64,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            ticks: true,
            look_every_ms: 1_000,
        }
    }
}

impl SchedulerConfig {
    /// What no type can say, as `key: expectation`.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        if (1..=60_000).contains(&self.look_every_ms) {
            Vec::new()
        } else {
            vec!["look_every_ms: expected 1 to 60000".to_owned()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert!(SchedulerConfig::default().faults().is_empty());
        assert_eq!(
            SchedulerConfig {
                look_every_ms: 0,
                ..SchedulerConfig::default()
            }
            .faults()
            .len(),
            1
        );
    }
}
