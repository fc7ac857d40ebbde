//! State that all sessions of one broker share.

pub mod activity;
pub mod agents;
pub mod newer_ledgers;
pub mod stream_facts;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::bus::partition::{ShareGroup, share_parts};
use shared::bus::{Bus, WitnessError};
use shared::clock::SharedClock;
use shared::llm::SharedModel;
use shared::model::identity::Identities;
use shared::model::session::QueueSettings;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::partition::PartSet;
use shared::wire::topology::SESSION_PARTS;
use tokio::sync::watch;

use self::activity::BrokerActivity;
use self::agents::RunnerAgents;
use self::newer_ledgers::NewerLedgers;
use self::stream_facts::{StreamEra, StreamFacts};
use crate::agent::personas::Personas;
use crate::agent::port::Agent;
use crate::approval::store::ApprovalStore;
use crate::config::BrokerConfig;
use crate::hooks::TurnHooks;
use crate::hooks::rules::HookRules;
use crate::ledger::state_cache::FoldCache;
use crate::queue::feed::DispatchFeed;
use crate::session::settings::QueuePolicy;

/// Append counters of one process begin at its start in Unix milliseconds times this, so that no two processes of one
/// name ever use the same append id.
const COUNTERS_PER_MS: u64 = 1_000_000;

/// Group of the brokers in KV `members`.
const MEMBERS: &str = "broker";

/// State that all sessions of one broker share.
#[derive(Debug)]
pub struct BrokerContext {
    /// Bus that the broker speaks on.
    pub bus: Bus,
    /// Clock for all times.
    pub clock: SharedClock,
    /// Name of this replica.
    pub instance: String,
    /// Settings of section `[broker]`.
    pub config: BrokerConfig,
    /// Personas and their agents.
    pub personas: Personas,
    /// Folds of the sessions that ran last.
    pub cache: FoldCache,
    /// The newest dispatches of the parts that this broker reads.
    pub feed: Arc<DispatchFeed>,
    /// The parts that this broker reads; none until its share is known.
    pub parts: watch::Sender<PartSet>,
    /// Request to stop the process.
    pub shutdown: ShutdownSignal,
    /// Time that a running turn may take after the request to stop.
    pub drain: Duration,
    /// Agents by runner.
    pub agents: RunnerAgents,
    /// Sessions that run here, are quarantined, or wait.
    pub activity: BrokerActivity,
    /// Sessions that wait for a broker of a later release.
    pub newer: NewerLedgers,
    /// Facts about the streams.
    pub streams: StreamFacts,
    counter: AtomicU64,
    /// Queue policies by the settings of personas, of which there are few.
    policies: Mutex<HashMap<QueueSettings, Arc<QueuePolicy>>>,
    desk: Arc<ApprovalStore>,
    hooks: Arc<TurnHooks>,
}

impl BrokerContext {
    /// Creates the broker `instance` on `bus`.
    #[must_use]
    pub fn new(
        bus: Bus,
        clock: SharedClock,
        instance: String,
        config: BrokerConfig,
        personas: Personas,
        shutdown: ShutdownSignal,
        drain: Duration,
    ) -> Self {
        // Counters start at the time, so that append ids of a restarted broker never repeat earlier ones.
        let started = u64::try_from(clock.now().0).unwrap_or(0);
        Self {
            cache: FoldCache::new(config.fold_cache),
            feed: Arc::default(),
            parts: watch::Sender::default(),
            counter: AtomicU64::new(started.saturating_mul(COUNTERS_PER_MS)),
            policies: Mutex::default(),
            hooks: Arc::new(TurnHooks::new(
                HookRules::default(),
                bus.clone(),
                Arc::clone(&clock),
                &instance,
            )),
            agents: RunnerAgents::new(&personas, &bus, &clock),
            activity: BrokerActivity::default(),
            newer: NewerLedgers::default(),
            streams: StreamFacts::new(&bus),
            desk: Arc::new(ApprovalStore::new(
                &bus,
                Arc::clone(&clock),
                Arc::default(),
                config.approvals.clone(),
            )),
            bus,
            clock,
            instance,
            config,
            personas,
            shutdown,
            drain,
        }
    }

    /// Returns the facts about the streams. They are read again by the first caller after a new connection, or after
    /// a restore was detected that lost ledger records. With each new era the broker forgets its caches, which may
    /// count streams that are gone.
    ///
    /// # Errors
    /// Returns [`WitnessError`] if the leader cannot be read.
    pub async fn current_era(&self) -> Result<Arc<StreamEra>, WitnessError> {
        self.streams.current_era(self.clock.now(), || self.cache.clear()).await
    }

    /// Returns the queue policy of `persona`'s sessions.
    #[must_use]
    pub fn queue_policy(&self, persona: &str) -> Arc<QueuePolicy> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = self.personas.persona_of(persona).queue;
        let policy = policies.entry(settings).or_insert_with(|| {
            Arc::new(QueuePolicy {
                common: settings.or(self.config.queue),
                channels: self.config.queue_by_channel.clone(),
                presets: self.personas.permission_levels.clone(),
            })
        });

        Arc::clone(policy)
    }

    /// Returns the broker with `agent` for all names, in place of the personas' own agents.
    #[must_use]
    pub fn with_agent(mut self, agent: Arc<dyn Agent>) -> Self {
        self.agents.set_instead(agent);
        self
    }

    /// Returns the broker with the persons and accounts of `identities`.
    #[must_use]
    pub fn with_identities(mut self, identities: Identities) -> Self {
        let config = self.config.approvals.clone();
        let clock = Arc::clone(&self.clock);
        self.desk = Arc::new(ApprovalStore::new(&self.bus, clock, Arc::new(identities), config));
        self
    }

    /// Returns the store of approvals.
    #[must_use]
    pub const fn desk(&self) -> &Arc<ApprovalStore> {
        &self.desk
    }

    /// Returns the broker with `model` for personas that ask one.
    #[must_use]
    pub fn with_model(mut self, model: SharedModel) -> Self {
        self.agents.set_model(model, &self.personas, &self.bus, &self.clock);
        self
    }

    /// Returns the broker with the hooks of `rules` within turns.
    #[must_use]
    pub fn with_hooks(mut self, rules: HookRules) -> Self {
        let clock = Arc::clone(&self.clock);
        self.hooks = Arc::new(TurnHooks::new(rules, self.bus.clone(), clock, &self.instance));
        self.agents
            .set_hooks(&self.hooks, &self.personas, &self.bus, &self.clock);
        self
    }

    /// Returns the hooks within turns.
    #[must_use]
    pub const fn hooks(&self) -> &Arc<TurnHooks> {
        &self.hooks
    }

    /// Returns a number that no append of this process had before.
    #[must_use]
    pub fn next_append(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether this broker reads `part`.
    #[must_use]
    pub fn reads_part(&self, part: u16) -> bool {
        self.parts.borrow().contains(part)
    }

    /// Shares the parts with the other brokers until shutdown is requested.
    pub async fn share_parts(&self) {
        let group = ShareGroup {
            name: MEMBERS,
            parts: SESSION_PARTS,
            instance: self.instance.clone(),
            clock: Arc::clone(&self.clock),
        };
        share_parts(self.bus.clone(), group, self.shutdown.clone(), self.parts.clone()).await;
    }
}
