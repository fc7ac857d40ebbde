//! Section `[broker]` of `nexus.toml`. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shared::model::dispatch::DeliveryContext;
use shared::model::session::QueueSettings;
use shared::process::{SecretValue, key};
use shared::retry::RetrySchedule;
use shared::wire::topology::CLAIM_ACK_WAIT;

/// Name of this service in dead letters.
pub const SERVICE: &str = "broker-svc";

/// Settings of section `[broker]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// Maximum number of sessions that run at once.
    pub max_active_turns: usize,
    /// Number of turns after which a session is given back if others wait.
    pub fairness_turns: u32,
    /// Time after which a session is given back if others wait, milliseconds.
    pub fairness_ms: u64,
    /// Time that a claim is held without a sign of life, milliseconds. The topology's `broker` consumer has the same
    /// value.
    pub ack_wait_ms: u64,
    /// Maximum number of folds kept in memory, of the sessions that ran last.
    pub fold_cache: usize,
    /// Interval of the sweeper's walks, milliseconds.
    pub sweep_interval_ms: u64,
    /// Minimum age of a dispatch before the sweeper looks at its session, milliseconds.
    pub sweep_age_ms: u64,
    /// How long a turn waits for a dispatch of its own that `DISPATCHES` has lost, milliseconds; hook-svc publishes it
    /// again soon after it has noticed.
    pub lost_dispatch_ms: u64,
    /// Waits between two questions to a remote agent that did not answer. The number of attempts has no effect: the
    /// persona's limits end the turn.
    pub agent_retry: RetrySchedule,
    /// Queue settings of sessions for which neither the hook, the session, the channel nor the persona has any.
    pub queue: QueueSettings,
    /// Queue settings by channel.
    pub queue_by_channel: BTreeMap<String, QueueSettings>,
    /// Directories and files with tokens, keys and passwords that programs of agents, command hooks and MCP servers
    /// can neither read nor change, beside the run directory and the files of secrets that the broker itself reads.
    pub hidden: Vec<String>,
    /// Settings of approvals.
    pub approvals: ApprovalsConfig,
}

/// Settings of section `[broker.approvals]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalsConfig {
    /// Destinations of the cards that persons may decide: the person's id in `identities.yaml` → channel, account,
    /// peer. For a person without a destination, the card is only in the conversation that waits.
    pub places: BTreeMap<String, DeliveryContext>,
    /// Links on the cards that go to those destinations; none = no links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkConfig>,
}

/// Settings of section `[broker.approvals.link]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Address of adapter-svc for people: `https://nexus.example`.
    pub base: String,
    /// Secret that signs the links; `adapter.approvals.link_secret` is the same.
    pub secret: SecretValue,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            max_active_turns: 256,
            fairness_turns: 8,
            fairness_ms: 30_000,
            ack_wait_ms: 3_000,
            fold_cache: 10_000,
            sweep_interval_ms: 1_000,
            sweep_age_ms: 5_000,
            lost_dispatch_ms: 30_000,
            agent_retry: RetrySchedule {
                initial_ms: 200,
                max_ms: 5_000,
                ..RetrySchedule::default()
            }
            .unbounded(),
            queue: QueueSettings::default(),
            queue_by_channel: BTreeMap::new(),
            hidden: Vec::new(),
            approvals: ApprovalsConfig::default(),
        }
    }
}

impl BrokerConfig {
    /// Returns the semantic faults, each `key: expectation`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let at_least_one = [
            ("max_active_turns", self.max_active_turns),
            ("fairness_turns", self.fairness_turns as usize),
            ("fold_cache", self.fold_cache),
        ];

        faults.extend(
            at_least_one
                .iter()
                .filter(|(_, n)| *n == 0)
                .map(|(key, _)| format!("{key}: expected at least 1")),
        );

        // The value documents the topology. Another one would make the broker misjudge the end of its claims.
        if u128::from(self.ack_wait_ms) != CLAIM_ACK_WAIT.as_millis() {
            faults.push(format!(
                "ack_wait_ms: expected {}, the acknowledgement time-out of stream CLAIMS",
                CLAIM_ACK_WAIT.as_millis()
            ));
        }

        let link = self.approvals.link.as_ref();
        if let Some(Err(weak)) = link.map(|link| key::text(link.secret.reveal())) {
            faults.push(format!("approvals.link.secret: {weak}"));
        }

        // The bounds below keep the promise that a lost wake-up is noticed within 10 s.
        if !(100..=2_000).contains(&self.sweep_interval_ms) {
            faults.push("sweep_interval_ms: expected 100 to 2000".to_owned());
        }

        if !(1_000..=6_000).contains(&self.sweep_age_ms) {
            faults.push("sweep_age_ms: expected 1000 to 6000, so that a lost wake-up is healed within 10 s".to_owned());
        }

        if !(1_000..=600_000).contains(&self.lost_dispatch_ms) {
            faults.push("lost_dispatch_ms: expected 1000 to 600000".to_owned());
        }

        faults
    }

    /// Returns valid settings that are weaker than they should be, each as `key: why`.
    #[must_use]
    pub fn find_warnings(&self) -> Vec<String> {
        let link = self.approvals.link.as_ref();
        let is_short = link.is_some_and(|link| key::is_short(link.secret.reveal()));
        let least = key::SOUND_TEXT_BYTES;
        let warning = format!("approvals.link.secret: shorter than {least} bytes; choose a longer one");
        is_short.then_some(warning).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_without_fault_and_every_fault_is_told() {
        assert_eq!(BrokerConfig::default().find_faults(), Vec::<String>::new());
        let wrong = BrokerConfig {
            fold_cache: 0,
            ack_wait_ms: 5_000,
            sweep_age_ms: 1,
            lost_dispatch_ms: 0,
            ..BrokerConfig::default()
        };
        assert_eq!(wrong.find_faults().len(), 4, "{:?}", wrong.find_faults());
    }
}
