//! State that all sessions of one broker share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use shared::bus::partition::{ShareGroup, share_parts};
use shared::bus::position::{told_degraded, told_sound};
use shared::bus::{Bus, MarkedStream, StreamWitness, WitnessError};
use shared::clock::SharedClock;
use shared::llm::SharedModel;
use shared::model::identity::Identities;
use shared::model::position::StreamLineage;
use shared::model::session::{QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::partition::PartSet;
use shared::wire::topology::SESSION_PARTS;
use shared::wire::topology::streams::DISPATCHES;
use tokio::sync::watch;

use crate::agent::echo::EchoAgent;
use crate::agent::llm::LlmAgent;
use crate::agent::nats::NatsAgent;
use crate::agent::personas::{AgentRunner, Personas};
use crate::agent::port::Agent;
use crate::agent::process::ProcessAgent;
use crate::approval::store::ApprovalStore;
use crate::config::BrokerConfig;
use crate::hooks::TurnHooks;
use crate::hooks::rules::HookRules;
use crate::ledger::state_cache::FoldCache;
use crate::queue::feed::DispatchFeed;
use crate::queue::settled::SequenceSet;
use crate::session::settings::QueuePolicy;

/// Append counters of one process begin at its start in Unix milliseconds times this, so that no two processes of one
/// name ever use the same append id.
const COUNTERS_PER_MS: u64 = 1_000_000;
/// Time after trouble with the server in which no session is quarantined.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

/// Group of the brokers in KV `members`.
const MEMBERS: &str = "broker";

/// Name of the sessions' cursors in reports that they are void.
const CURSORS: &str = "cursors of sessions";

/// Facts about the streams that hold while one connection lasts.
#[derive(Debug)]
pub struct StreamEra {
    /// Number of the era, counted from 1.
    pub number: u64,
    /// Number of the connection over which the facts were read.
    connection: u64,
    /// Incarnation of `DISPATCHES`.
    pub incarnation: String,
    /// Former incarnations of `DISPATCHES`, if it was restored.
    pub lineage: StreamLineage,
    /// Sequence of the first message in `DISPATCHES`.
    pub first: u64,
    /// Time until which turns may have run that the ledger does not know; none = it knows all turns.
    pub doubt_until: Option<UnixMillis>,
}

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
    era: tokio::sync::Mutex<Option<Arc<StreamEra>>>,
    witness: StreamWitness,
    /// Sessions whose cursor was void at the last look, and that have not run since.
    void_cursors: Mutex<HashSet<SessionRef>>,
    settled: Mutex<SequenceSet>,
    stopping: OnceLock<Instant>,
    trouble: Mutex<Option<Instant>>,
    parked: RwLock<BTreeMap<String, SessionRef>>,
    running: Mutex<HashMap<SessionRef, usize>>,
    /// By part: the number of claims that wait, as last reported.
    waiting: Vec<AtomicU64>,
    counter: AtomicU64,
    /// Queue policies by the settings of personas, of which there are few.
    policies: Mutex<HashMap<QueueSettings, Arc<QueuePolicy>>>,
    echo: Arc<dyn Agent>,
    nats: Arc<dyn Agent>,
    instead: Option<Arc<dyn Agent>>,
    process: Arc<dyn Agent>,
    desk: Arc<ApprovalStore>,
    hooks: Arc<TurnHooks>,
    /// Agent of runner `llm`; none if no persona asks models.
    llm: Option<Arc<dyn Agent>>,
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
            trouble: Mutex::default(),
            era: tokio::sync::Mutex::default(),
            witness: StreamWitness::new(&bus, MarkedStream::Dispatches),
            void_cursors: Mutex::default(),
            settled: Mutex::default(),
            stopping: OnceLock::new(),
            parked: RwLock::default(),
            running: Mutex::default(),
            waiting: (0..SESSION_PARTS).map(|_| AtomicU64::new(0)).collect(),
            counter: AtomicU64::new(started.saturating_mul(COUNTERS_PER_MS)),
            policies: Mutex::default(),
            echo: Arc::new(EchoAgent),
            nats: Arc::new(NatsAgent::new(bus.clone())),
            instead: None,
            process: Arc::new(ProcessAgent::new(Arc::new(personas.clone()), bus.clone())),
            hooks: Arc::new(TurnHooks::new(
                HookRules::default(),
                bus.clone(),
                Arc::clone(&clock),
                &instance,
            )),
            llm: None,
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
        let mut era = self.era.lock().await;
        // Read before the stream, so that a connection that ends meanwhile starts another era.
        let connection = self.bus.connection_number();
        let doubt_until = self.witness.doubt_until(self.clock.now()).await?;
        let stands = |known: &&Arc<StreamEra>| known.connection == connection && known.doubt_until == doubt_until;

        if let Some(known) = era.as_ref().filter(stands) {
            return Ok(Arc::clone(known));
        }

        let info = self.bus.stream_info(DISPATCHES).await?;
        // What was folded and settled belongs to the former stream.
        self.cache.clear();
        self.with_settled(|settled| *settled = SequenceSet::default());

        let found = Arc::new(StreamEra {
            number: era.as_ref().map_or(0, |known| known.number) + 1,
            connection,
            incarnation: info.incarnation,
            lineage: info.lineage,
            first: info.state.first,
            doubt_until,
        });

        *era = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Returns the witness of the ledger.
    #[must_use]
    pub fn ledger_witness(&self) -> StreamWitness {
        self.witness.clone()
    }

    /// Notes that the cursor of `session` is void, for the reason `why`; `None` means that it holds or the ledger
    /// decided.
    pub fn note_cursor(&self, session: &SessionRef, why: Option<&str>) {
        let mut void = self.void_cursors.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => {
                void.insert(session.clone());
                let sentence = format!("the cursors of {} sessions are void: {why}", void.len());
                told_degraded(CURSORS, sentence);
            }
            None if void.remove(session) && void.is_empty() => told_sound(CURSORS),
            None => {}
        }
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
        self.instead = Some(agent);
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
        let personas = Arc::new(self.personas.clone());
        self.llm = Some(Arc::new(LlmAgent::new(model, personas, self.bus.clone(), &self.clock)));
        self
    }

    /// Returns the broker with the hooks of `rules` within turns.
    #[must_use]
    pub fn with_hooks(mut self, rules: HookRules) -> Self {
        let clock = Arc::clone(&self.clock);
        self.hooks = Arc::new(TurnHooks::new(rules, self.bus.clone(), clock, &self.instance));
        let process = ProcessAgent::new(Arc::new(self.personas.clone()), self.bus.clone());
        self.process = Arc::new(process.with_hooks(Arc::clone(&self.hooks)));
        self
    }

    /// Returns the hooks within turns.
    #[must_use]
    pub const fn hooks(&self) -> &Arc<TurnHooks> {
        &self.hooks
    }

    /// Returns the agent of `runner`. If no model is configured, the agent of a persona that asks one is absent.
    #[must_use]
    pub fn agent_for(&self, runner: AgentRunner) -> Arc<dyn Agent> {
        if let Some(instead) = &self.instead {
            return Arc::clone(instead);
        }
        match runner {
            AgentRunner::Echo => Arc::clone(&self.echo),
            AgentRunner::Nats => Arc::clone(&self.nats),
            AgentRunner::Process => Arc::clone(&self.process),
            AgentRunner::Llm => Arc::clone(self.llm.as_ref().unwrap_or(&self.nats)),
        }
    }

    /// Returns a number that no append of this process had before.
    #[must_use]
    pub fn next_append(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of claims that wait for a broker, as last reported for the parts that this broker reads or
    /// helps with.
    #[must_use]
    pub fn claims_waiting(&self) -> u64 {
        self.waiting.iter().map(|claims| claims.load(Ordering::Relaxed)).sum()
    }

    /// Notes the number of waiting claims of `part`.
    pub fn note_waiting(&self, part: u16, claims: u64) {
        self.waiting[usize::from(part)].store(claims, Ordering::Relaxed);
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

    /// Calls `act` with the sequences of `DISPATCHES` that this broker has consumed, which the sweeper skips.
    pub fn with_settled<T>(&self, act: impl FnOnce(&mut SequenceSet) -> T) -> T {
        act(&mut self.settled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that a worker runs `session`, until the guard is dropped.
    #[must_use]
    pub fn enter_session(self: &Arc<Self>, session: &SessionRef) -> RunningGuard {
        *self.lock_running().entry(session.clone()).or_default() += 1;
        RunningGuard {
            broker: Arc::clone(self),
            session: session.clone(),
        }
    }

    /// Returns whether a worker of this broker runs `session`.
    #[must_use]
    pub fn runs_session(&self, session: &SessionRef) -> bool {
        self.lock_running().contains_key(session)
    }

    /// Notes that the request to stop was received: running turns have until [`BrokerContext::drain`] from now.
    pub fn begin_stop(&self) {
        let _ = self.stopping.set(self.clock.monotonic());
    }

    /// Returns the time at which the request to stop was received.
    #[must_use]
    pub fn stopping_since(&self) -> Option<Instant> {
        self.stopping.get().copied()
    }

    /// Notes that a session could not be run because the server did not answer as it should.
    pub fn note_trouble(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.monotonic());
    }

    /// Returns whether there was trouble lately: then a claim that came again and again says nothing about its
    /// session.
    #[must_use]
    pub fn had_trouble(&self) -> bool {
        let at = *self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| self.clock.monotonic().saturating_duration_since(at) < TROUBLE_LASTS)
    }

    /// Returns whether the session of these subject tokens is quarantined.
    #[must_use]
    pub fn is_parked(&self, key: &str) -> bool {
        self.parked
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(key)
    }

    /// Notes whether the session of these subject tokens is quarantined (some) or not; returns the note before.
    pub fn set_parked(&self, key: &str, session: Option<SessionRef>) -> Option<SessionRef> {
        let mut all = self.parked.write().unwrap_or_else(PoisonError::into_inner);
        let before = match session {
            Some(session) => all.insert(key.to_owned(), session),
            None => all.remove(key),
        };
        metrics::gauge!("nexus_broker_sessions_quarantined").set(u32::try_from(all.len()).unwrap_or(u32::MAX));
        before
    }

    fn lock_running(&self) -> std::sync::MutexGuard<'_, HashMap<SessionRef, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard that counts a session as run here while it lives.
#[derive(Debug)]
pub struct RunningGuard {
    broker: Arc<BrokerContext>,
    session: SessionRef,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut running = self.broker.lock_running();
        if let Some(count) = running.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.session);
            }
        }
    }
}
