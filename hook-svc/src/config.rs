//! The section `[hooks]` of `nexus.toml`. *Pure.*

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shared::llm::LlmConfig;
use shared::model::session::DmScope;
use shared::process::SecretValue;

use crate::host::server_origin::ServerOrigin;
use crate::routing::DeliveryGrants;
use crate::runner::SandboxMode;

/// Default for the most events that one replica evaluates at once.
pub const DEFAULT_IN_FLIGHT: usize = 1_024;

/// Default for the most events of one conversation that are evaluated at once.
pub const DEFAULT_IN_FLIGHT_PER_CONVERSATION: usize = 64;

/// Largest value of either limit, so that memory stays bounded.
pub const MAX_IN_FLIGHT: usize = 65_536;

/// Most Bun workers that may be configured.
pub const MAX_WORKERS: usize = 64;

/// Default for the milliseconds of synchronous work without progress after which a worker is killed.
pub const DEFAULT_HARD_BUDGET_MS: u64 = 250;

/// Default base address of the embedding endpoint.
pub const DEFAULT_EMBEDDER_URL: &str = "https://api.openai.com/v1";

/// Kind of embedder, which turns texts into vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbedderKind {
    /// Local model of word vectors: no network, some microseconds per text.
    #[default]
    Static,
    /// Local model that reads a text as a whole: no network, some ten milliseconds per sentence, more than a hundred
    /// for a long text.
    Minilm,
    /// An OpenAI-compatible endpoint, to which every event's text is sent.
    Openai,
    /// No embedder: search uses words alone.
    None,
}
/// Default for the US dollars that one hook may spend on the model per day.
pub const DEFAULT_DAILY_USD_PER_HOOK: f64 = 1.0;
/// Default for the US dollars that all hooks may spend on the model per day.
pub const DEFAULT_DAILY_USD: f64 = 10.0;

/// Default for the number of replicas that keep a copy of the read model.
pub const DEFAULT_COPIES: usize = 2;

/// Most copies of the read model that may be configured.
pub const MAX_COPIES: usize = 16;

/// Configuration of the read model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReadModelConfig {
    /// Number of replicas that keep a copy; the others ask them. Must be the same for all replicas.
    pub copies: usize,
    /// Whether this replica may be one of them.
    pub keep: bool,
}

impl Default for ReadModelConfig {
    fn default() -> Self {
        Self {
            copies: DEFAULT_COPIES,
            keep: true,
        }
    }
}

/// Configuration of hook evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Path of the hooks directory; if empty, this replica follows the registry alone.
    pub dir: String,
    /// Name of the directory in the registry: it disables only entries of this name. Replicas that mount the same
    /// directory must use the same name.
    pub root: String,
    /// Folder in which hooks that agents make are written as files; if empty, they are in the registry alone.
    pub agent_dir: String,
    /// Folder of the read model, in which each replica uses a folder of its own; if empty, the system's temporary
    /// folder.
    pub data_dir: String,
    /// Copies of the read model.
    pub read_model: ReadModelConfig,
    /// Path of Bun; if empty, `.tools/bin/bun` of the checkout, else `bun` on the `PATH`.
    pub bun: String,
    /// Number of Bun workers; 0 means one per core, as far as the memory limit of the container holds them.
    pub workers: usize,
    /// Milliseconds of synchronous work without progress after which a worker is killed.
    pub hard_budget_ms: u64,
    /// Whether hook-svc starts if hooks cannot be fully confined: `enforce` (it does not) or `degraded` (it does, and
    /// reports the missing confinements).
    pub sandbox: SandboxMode,
    /// User that hooks run as if hook-svc is root: a name, or a user id and a group id as `1000:1000`. If empty,
    /// `nobody`, or root if `nobody` cannot reach the files that hooks need.
    pub user: String,
    /// Selects the direct conversations that share one session.
    pub dm_scope: DmScope,
    /// Whether the chat page is used only by the person at this machine: while no address of the owner is configured,
    /// that person is treated as the owner, and gets session `main`.
    pub local_chat: bool,
    /// Path of the routing bindings and webhook mappings; empty means none.
    pub bindings: String,
    /// Most events of one conversation that are in memory, and evaluated, at once; further ones are read again later.
    pub in_flight_per_conversation: usize,
    /// Most events that this replica evaluates at once.
    pub in_flight: usize,
    /// Embedder that `search()` uses to compare meanings.
    pub embedder: EmbedderKind,
    /// For `static` and `minilm`, the model's folder, by default the one that `deploy/fetch-tools` installs; for
    /// `openai`, the model's name.
    pub embedder_model: String,
    /// Base address of the endpoint, for `openai`.
    pub embedder_url: String,
    /// Key for the endpoint, for `openai`, if it needs one.
    pub embedder_key: Option<SecretValue>,
    /// Time zone of `@schedule`s whose hooks name none.
    pub time_zone: String,
    /// US dollars that one hook may spend on `llm()` in a day (UTC).
    pub llm_daily_usd_per_hook: f64,
    /// US dollars that all hooks together may spend on `llm()` in a day (UTC).
    pub llm_daily_usd: f64,
    /// Milliseconds by which the time that hooks see is ahead of the host's clock, to rehearse a future time.
    pub clock_offset_ms: i64,
    /// Name of this replica among the members; if empty, its instance id. Two replicas must not share a name.
    pub members_name: String,
    /// Servers that hooks may fetch from (`ctx.fetch()`), by hook id: a server must be requested by the hook with
    /// `@allow net=…` and be listed here. Applies only to operators' own hooks.
    pub grants: BTreeMap<String, Vec<String>>,
    /// Conversations in which an agent's hook may answer, beyond those of the event and of the turn in which it was
    /// made, by hook id: `{channel}:{peer}` or `{channel}:*`.
    pub deliveries: DeliveryGrants,
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self {
            dir: String::new(),
            root: "hooks".to_owned(),
            agent_dir: String::new(),
            data_dir: String::new(),
            read_model: ReadModelConfig::default(),
            bun: String::new(),
            workers: 0,
            hard_budget_ms: DEFAULT_HARD_BUDGET_MS,
            sandbox: SandboxMode::Enforce,
            user: String::new(),
            dm_scope: DmScope::Auto,
            local_chat: false,
            bindings: String::new(),
            in_flight_per_conversation: DEFAULT_IN_FLIGHT_PER_CONVERSATION,
            in_flight: DEFAULT_IN_FLIGHT,
            embedder: EmbedderKind::Static,
            embedder_model: String::new(),
            embedder_url: DEFAULT_EMBEDDER_URL.to_owned(),
            embedder_key: None,
            time_zone: "UTC".to_owned(),
            llm_daily_usd_per_hook: DEFAULT_DAILY_USD_PER_HOOK,
            llm_daily_usd: DEFAULT_DAILY_USD,
            clock_offset_ms: 0,
            members_name: String::new(),
            grants: BTreeMap::new(),
            deliveries: DeliveryGrants::new(),
        }
    }
}

impl HooksConfig {
    /// Returns the faults of the values, each as `key: expectation`, with keys relative to the section.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.root.is_empty() || self.root.chars().any(char::is_control) {
            faults.push("root: expected a non-empty name without control characters".to_owned());
        }

        let (dir, agents) = (Path::new(&self.dir), Path::new(&self.agent_dir));
        let both = !self.dir.is_empty() && !self.agent_dir.is_empty();

        // A file that an agent made would otherwise become an operator's hook as soon as its entry is gone.
        if both && (agents.starts_with(dir) || dir.starts_with(agents)) {
            faults.push("agent_dir: expected a folder that neither contains `dir` nor lies in it".to_owned());
        }

        if self.workers > MAX_WORKERS {
            faults.push(format!(
                "workers: {} found, expected 0 (one per core) to {MAX_WORKERS}",
                self.workers
            ));
        }

        let copies = self.read_model.copies;
        if copies == 0 || copies > MAX_COPIES {
            faults.push(format!("read_model.copies: {copies} found, expected 1 to {MAX_COPIES}"));
        }

        // Zero would end every script at once.
        if self.hard_budget_ms == 0 {
            faults.push("hard_budget_ms: expected at least 1".to_owned());
        }

        if self.embedder == EmbedderKind::Openai && self.embedder_model.is_empty() {
            faults.push("embedder_model: required if embedder is openai".to_owned());
        }

        if !self.embedder_url.starts_with("http://") && !self.embedder_url.starts_with("https://") {
            faults.push("embedder_url: expected http://… or https://…".to_owned());
        }

        if let Err(error) = shared::schedule::zone_named(&self.time_zone) {
            faults.push(format!("time_zone: {error}"));
        }

        // Checked here: a misspelled server would otherwise only be noticed when a script is refused.
        for (hook, servers) in &self.grants {
            let wrong = servers.iter().filter_map(|server| ServerOrigin::parse(server).err());
            faults.extend(wrong.map(|error| format!("grants.{hook}: {error}")));
        }

        for (hook, places) in &self.deliveries {
            let is_place = |place: &String| {
                place
                    .split_once(':')
                    .is_some_and(|(channel, peer)| !channel.is_empty() && !peer.is_empty())
            };
            let wrong = places.iter().filter(|place| !is_place(place));
            faults
                .extend(wrong.map(|place| {
                    format!("deliveries.{hook}: `{place}` found, expected `channel:peer` or `channel:*`")
                }));
        }

        for (key, value) in self.budget_limits() {
            if !value.is_finite() || value < 0.0 {
                faults.push(format!("{key}: {value} found, expected dollars, 0 or more"));
            }
        }

        let bounds = [
            ("in_flight_per_conversation", self.in_flight_per_conversation),
            ("in_flight", self.in_flight),
        ];
        for (key, value) in bounds {
            if value == 0 || value > MAX_IN_FLIGHT {
                faults.push(format!("{key}: {value} found, expected 1 to {MAX_IN_FLIGHT}"));
            }
        }

        faults
    }

    /// Returns the faults of the budgets if `llm` names a model. A budget of zero needs no price.
    #[must_use]
    pub fn faults_beside(&self, llm: &LlmConfig) -> Vec<String> {
        // Without a usable model, no calls are made.
        let Ok(model) = llm.usable_model() else {
            return Vec::new();
        };
        let Err(error) = llm.prices.bounding_price(model) else {
            return Vec::new();
        };
        let unbound = self.budget_limits().into_iter().filter(|(_, value)| *value > 0.0);
        unbound
            .map(|(key, value)| format!("{key}: a limit of {value} US dollars needs the model's price: {error}"))
            .collect()
    }

    fn budget_limits(&self) -> [(&'static str, f64); 2] {
        [
            ("llm_daily_usd_per_hook", self.llm_daily_usd_per_hook),
            ("llm_daily_usd", self.llm_daily_usd),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_without_fault() {
        assert_eq!(HooksConfig::default().find_faults(), Vec::<String>::new());
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let config = HooksConfig {
            root: String::new(),
            dir: "/etc/nexus/hooks".to_owned(),
            agent_dir: "/etc/nexus/hooks/agents".to_owned(),
            workers: 1_000,
            in_flight: 0,
            in_flight_per_conversation: MAX_IN_FLIGHT + 1,
            grants: BTreeMap::from([("h".to_owned(), vec!["*.example.com".to_owned()])]),
            deliveries: BTreeMap::from([("h".to_owned(), vec!["webchat".to_owned()])]),
            ..HooksConfig::default()
        };

        let faults = config.find_faults();
        for key in [
            "root:",
            "agent_dir:",
            "workers:",
            "in_flight_per_conversation:",
            "in_flight:",
            "grants.h:",
            "deliveries.h:",
        ] {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:?}");
        }
    }

    #[test]
    fn a_budget_of_dollars_needs_the_models_price() {
        let check = |budget: f64, llm: serde_json::Value, keys: &[&str]| {
            let config = HooksConfig {
                llm_daily_usd: budget,
                ..HooksConfig::default()
            };
            let llm: LlmConfig = serde_json::from_value(llm).expect("a good section");
            let faults = config.faults_beside(&llm);
            let told: Vec<&str> = faults
                .iter()
                .filter_map(|fault| Some(fault.split_once(':')?.0))
                .collect();

            assert_eq!(told, keys, "{faults:?}");
            assert!(
                faults.iter().all(|fault| fault.contains("llm.prices.\"m\"")),
                "{faults:?}"
            );
        };

        let own = json!({"provider": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"});
        check(10.0, own.clone(), &["llm_daily_usd_per_hook", "llm_daily_usd"]);
        check(0.0, own.clone(), &["llm_daily_usd_per_hook"]);

        let mut priced = own;
        priced["prices"] = json!({"m": {"input": 0, "output": 0}});
        check(10.0, priced, &[]);
        check(10.0, json!({}), &[]);
    }
}
