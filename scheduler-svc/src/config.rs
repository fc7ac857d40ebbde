//! Section `[scheduler]` of the configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shared::schedule::zone_named;

use crate::schedules::jobs::{self, ConfiguredJob};

/// Configuration section `[scheduler]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Whether this replica publishes the minute tick.
    pub ticks: bool,
    /// Interval at which the clock is read, in milliseconds: the longest delay of a tick after the clock was put
    /// forward.
    pub look_every_ms: u64,
    /// Time zone of schedules that name none.
    pub time_zone: String,
    /// Interval at which all schedules are checked for missing effects, in milliseconds.
    pub reconcile_every_ms: u64,
    /// Offset of this replica's clock from the host's, in milliseconds, for rehearsals of a future time.
    pub clock_offset_ms: i64,
    /// Schedules of the configuration, by name.
    pub jobs: BTreeMap<String, ConfiguredJob>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            ticks: true,
            look_every_ms: 1_000,
            time_zone: "UTC".to_owned(),
            reconcile_every_ms: 3_600_000,
            clock_offset_ms: 0,
            jobs: BTreeMap::new(),
        }
    }
}

impl SchedulerConfig {
    /// Returns the faults that the types cannot express, as `key: expectation`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !(1..=60_000).contains(&self.look_every_ms) {
            faults.push("look_every_ms: expected 1 to 60000".to_owned());
        }

        if !(1_000..=86_400_000).contains(&self.reconcile_every_ms) {
            faults.push("reconcile_every_ms: expected 1000 to 86400000".to_owned());
        }

        if let Err(error) = zone_named(&self.time_zone) {
            faults.push(format!("time_zone: {error}"));
        }

        if let Err(wrong) = jobs::job_specs(&self.jobs, &self.time_zone) {
            faults.extend(wrong);
        }

        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert!(SchedulerConfig::default().find_faults().is_empty());
        let wrong = SchedulerConfig {
            look_every_ms: 0,
            reconcile_every_ms: 0,
            time_zone: "Mars".to_owned(),
            jobs: BTreeMap::from([("a".to_owned(), ConfiguredJob::default())]),
            ..SchedulerConfig::default()
        };
        assert_eq!(wrong.find_faults().len(), 4, "{:?}", wrong.find_faults());
    }
}
