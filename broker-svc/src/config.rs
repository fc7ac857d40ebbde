//! Section `[broker]` of `nexus.toml`. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shared::model::dispatch::DeliveryContext;
use shared::model::session::QueueSettings;
use shared::process::{Secret, key};
use shared::retry::Schedule;
use shared::wire::topology::CLAIM_ACK_WAIT;

/// Name of this service in dead letters.
pub const SERVICE: &str = "broker-svc";

/// Section `[broker]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// Sessions run at once.
    pub max_active_turns: usize,
    /// Turns after which a session is given back where others wait.
    pub fairness_turns: u32,
    /// Milliseconds after which a session is given back where others wait.
    pub fairness_ms: u64,
    /// How long a claim is ours without a sign of life, milliseconds. The topology's `broker` consumer says the same.
    pub ack_wait_ms: u64,
    /// Folds kept in memory, of the sessions run last.
    pub fold_cache: usize,
    /// How often the sweeper walks, milliseconds.
    pub sweep_interval_ms: u64,
    /// How old a dispatch is before the sweeper looks at its session, milliseconds.
    pub sweep_age_ms: u64,
    /// Waits between two questions to a remote agent that did not answer. Its number of attempts does not count:
    /// the persona's limits end the turn.
    pub agent_retry: Schedule,
    /// Queue settings of sessions for which neither the hook, the session, the channel nor the persona says otherwise.
    pub queue: QueueSettings,
    /// Queue settings by channel.
    pub queue_by_channel: BTreeMap<String, QueueSettings>,
    /// Directories and files that programs of agents, command hooks and MCP servers can neither read nor change, beside the
    /// run directory and the files of secrets that the broker itself reads: where tokens, keys and passwords lie.
    pub hidden: Vec<String>,
    /// Approvals.
    pub approvals: ApprovalsConfig,
}

/// Section `[broker.approvals]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalsConfig {
    /// Where persons get the cards that they may decide: the person's id in `identities.yaml` → channel, account, peer.
    /// Without a place of their own the card stands in the conversation that waits alone.
    pub places: BTreeMap<String, DeliveryContext>,
    /// Links on the cards that go to those places; none = no links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkConfig>,
}

/// Section `[broker.approvals.link]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Where adapter-svc is reached: `https://nexus.example`.
    pub base: String,
    /// What signs them; `adapter.approvals.link_secret` is the same.
    pub secret: Secret,
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
            agent_retry: Schedule {
                initial_ms: 200,
                max_ms: 5_000,
                ..Schedule::default()
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
    /// Semantic faults, each `key: what is expected`.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
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
                .map(|(key, _)| format!("{key}: at least 1")),
        );

        if u128::from(self.ack_wait_ms) != CLAIM_ACK_WAIT.as_millis() {
            faults.push(format!(
                "ack_wait_ms: {} as the topology says",
                CLAIM_ACK_WAIT.as_millis()
            ));
        }

        let link = self.approvals.link.as_ref();
        if let Some(Err(weak)) = link.map(|link| key::text(link.secret.reveal())) {
            faults.push(format!("approvals.link.secret: {weak}"));
        }

        if !(100..=2_000).contains(&self.sweep_interval_ms) {
            faults.push("sweep_interval_ms: between 100 and 2000".to_owned());
        }

        if !(1_000..=6_000).contains(&self.sweep_age_ms) {
            faults.push("sweep_age_ms: between 1000 and 6000, so that a lost wake-up is healed within 10 s".to_owned());
        }

        faults
    }

    /// What is sound and nevertheless weaker than it should be, each as `key: why`.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
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
        assert_eq!(BrokerConfig::default().faults(), Vec::<String>::new());
        let wrong = BrokerConfig {
            fold_cache: 0,
            ack_wait_ms: 5_000,
            sweep_age_ms: 1,
            ..BrokerConfig::default()
        };
        assert_eq!(wrong.faults().len(), 3, "{:?}", wrong.faults());
    }
}
