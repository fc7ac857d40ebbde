//! The section `[hooks]` of `nexus.toml`. *Pure.*

use serde::{Deserialize, Serialize};
use shared::model::session::DmScope;

/// Most events that one replica evaluates at once, where nothing is configured.
pub const DEFAULT_IN_FLIGHT: usize = 1_024;

/// Most events of one partition that are evaluated at once, where nothing is configured.
pub const DEFAULT_IN_FLIGHT_PER_PARTITION: usize = 64;

/// Largest bound that may be configured for either, so that memory stays bounded.
pub const MAX_IN_FLIGHT: usize = 65_536;

/// Most Bun workers that may be configured.
pub const MAX_WORKERS: usize = 64;

/// Milliseconds of synchronous work without progress after which a worker is killed, where nothing is configured.
pub const DEFAULT_HARD_BUDGET_MS: u64 = 250;

/// US dollars a day for the model, of one hook and of all, where nothing is configured.
pub const DEFAULT_DAILY_USD_PER_HOOK: f64 = 1.0;
/// See [`DEFAULT_DAILY_USD_PER_HOOK`].
pub const DEFAULT_DAILY_USD: f64 = 10.0;

/// What an operator says about hook evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// The hooks directory; empty = this replica follows the registry alone.
    pub dir: String,
    /// The directory's name in the registry: it disables only entries of this name. Replicas that mount the
    /// same directory say the same name.
    pub root: String,
    /// Where hooks that agents make are written as files; empty = they are in the registry alone.
    pub agent_dir: String,
    /// Where the read model lies; each replica takes a folder of its own in it. Empty = the system's
    /// temporary folder.
    pub data_dir: String,
    /// Path of Bun; empty = `.tools/bin/bun` of the checkout, else `bun` on the PATH.
    pub bun: String,
    /// Bun workers; 0 = one per core.
    pub workers: usize,
    /// Milliseconds of synchronous work without progress after which a worker is killed.
    pub hard_budget_ms: u64,
    /// Which direct conversations share one session.
    pub dm_scope: DmScope,
    /// Most events of one partition that are evaluated at once.
    pub in_flight_per_partition: usize,
    /// Most events that this replica evaluates at once.
    pub in_flight: usize,
    /// Time zone of `@schedule`s whose hooks name none.
    pub time_zone: String,
    /// US dollars that one hook may spend on `llm()` in a day (UTC).
    pub llm_daily_usd_per_hook: f64,
    /// US dollars that all hooks together may spend on `llm()` in a day (UTC).
    pub llm_daily_usd: f64,
    /// This replica's name among the members; empty = its instance id. Two replicas never share one.
    pub members_name: String,
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self {
            dir: String::new(),
            root: "hooks".to_owned(),
            agent_dir: String::new(),
            data_dir: String::new(),
            bun: String::new(),
            workers: 0,
            hard_budget_ms: DEFAULT_HARD_BUDGET_MS,
            dm_scope: DmScope::Main,
            in_flight_per_partition: DEFAULT_IN_FLIGHT_PER_PARTITION,
            in_flight: DEFAULT_IN_FLIGHT,
            time_zone: "UTC".to_owned(),
            llm_daily_usd_per_hook: DEFAULT_DAILY_USD_PER_HOOK,
            llm_daily_usd: DEFAULT_DAILY_USD,
            members_name: String::new(),
        }
    }
}

impl HooksConfig {
    /// What is wrong with the values, each as `key: what is expected`, keys within the section.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.root.is_empty() || self.root.chars().any(char::is_control) {
            faults.push("root: expected a non-empty name without control characters".to_owned());
        }
        if self.workers > MAX_WORKERS {
            faults.push(format!(
                "workers: {} found, expected 0 (one per core) to {MAX_WORKERS}",
                self.workers
            ));
        }
        if self.hard_budget_ms == 0 {
            faults.push("hard_budget_ms: expected at least 1".to_owned());
        }
        if let Err(error) = shared::schedule::zone_named(&self.time_zone) {
            faults.push(format!("time_zone: {error}"));
        }
        let budgets = [
            ("llm_daily_usd_per_hook", self.llm_daily_usd_per_hook),
            ("llm_daily_usd", self.llm_daily_usd),
        ];
        for (key, value) in budgets {
            if !value.is_finite() || value < 0.0 {
                faults.push(format!("{key}: {value} found, expected dollars, 0 or more"));
            }
        }
        let bounds = [
            ("in_flight_per_partition", self.in_flight_per_partition),
            ("in_flight", self.in_flight),
        ];
        for (key, value) in bounds {
            if value == 0 || value > MAX_IN_FLIGHT {
                faults.push(format!("{key}: {value} found, expected 1 to {MAX_IN_FLIGHT}"));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_without_fault() {
        assert_eq!(HooksConfig::default().faults(), Vec::<String>::new());
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let config = HooksConfig {
            root: String::new(),
            workers: 1_000,
            in_flight: 0,
            in_flight_per_partition: MAX_IN_FLIGHT + 1,
            ..HooksConfig::default()
        };
        let faults = config.faults();
        for key in ["root:", "workers:", "in_flight_per_partition:", "in_flight:"] {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:?}");
        }
    }
}
