//! What all sessions of one broker share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use shared::bus::position::{told_degraded, told_sound};
use shared::bus::{Bus, Marked, Witness, WitnessError};
use shared::clock::SharedClock;
use shared::llm::SharedModel;
use shared::model::identity::Identities;
use shared::model::position::Lineage;
use shared::model::session::{QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::Shutdown;
use shared::wire::topology::streams::DISPATCHES;

use crate::agent::echo::Echo;
use crate::agent::llm::Llm;
use crate::agent::nats::Nats;
use crate::agent::port::Agent;
use crate::agent::process::Process;
use crate::approval::desk::Desk;
use crate::cache::FoldCache;
use crate::config::BrokerConfig;
use crate::feed::Feed;
use crate::hook_point::Hooks;
use crate::hook_point::rules::HookRules;
use crate::personas::{Personas, Runner};
use crate::session::settings::Policy;
use crate::settled::Settled;

/// Append counters of one process begin at its start in Unix milliseconds times this, so that no two processes of
/// one name ever use the same append id.
const COUNTERS_PER_MS: u64 = 1_000_000;
/// How long trouble with the server keeps sessions from being quarantined.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

/// How the cursors of sessions are named where it is told that they are void.
const CURSORS: &str = "cursors of sessions";

/// What holds of the streams while one connection stands.
#[derive(Debug)]
pub struct Era {
    /// Which one, counted from 1.
    pub number: u64,
    /// The connection over which it was found out.
    connection: u64,
    /// Incarnation of `DISPATCHES`.
    pub incarnation: String,
    /// Its former lives, where it was restored.
    pub lineage: Lineage,
    /// Sequence of its first message.
    pub first: u64,
    /// Until when turns may have run of which the ledger does not know; none = it knows of all.
    pub doubt_until: Option<UnixMillis>,
}

/// What all sessions of one broker share.
#[derive(Debug)]
pub struct Broker {
    /// The bus.
    pub bus: Bus,
    /// The time.
    pub clock: SharedClock,
    /// This replica's name.
    pub instance: String,
    /// Section `[broker]`.
    pub config: BrokerConfig,
    /// Who answers for which name.
    pub personas: Personas,
    /// Folds of the sessions run last.
    pub cache: FoldCache,
    /// The newest dispatches of all sessions.
    pub feed: Arc<Feed>,
    /// The request to stop.
    pub shutdown: Shutdown,
    /// How long a running turn may go on after that.
    pub drain: Duration,
    era: tokio::sync::Mutex<Option<Arc<Era>>>,
    witness: Witness,
    /// Sessions whose cursor was void when they were looked at last, and that were not run since.
    void_cursors: Mutex<HashSet<SessionRef>>,
    settled: Mutex<Settled>,
    stopping: OnceLock<Instant>,
    trouble: Mutex<Option<Instant>>,
    parked: RwLock<BTreeMap<String, SessionRef>>,
    running: Mutex<HashMap<SessionRef, usize>>,
    waiting: AtomicU64,
    counter: AtomicU64,
    /// By the settings of personas, of which there are few.
    policies: Mutex<HashMap<QueueSettings, Arc<Policy>>>,
    echo: Arc<dyn Agent>,
    nats: Arc<dyn Agent>,
    instead: Option<Arc<dyn Agent>>,
    process: Arc<dyn Agent>,
    desk: Arc<Desk>,
    hooks: Arc<Hooks>,
    /// None where no persona asks models.
    llm: Option<Arc<dyn Agent>>,
}

impl Broker {
    /// The broker `instance` on `bus`.
    #[must_use]
    pub fn new(
        bus: Bus,
        clock: SharedClock,
        instance: String,
        config: BrokerConfig,
        personas: Personas,
        shutdown: Shutdown,
        drain: Duration,
    ) -> Self {
        let started = u64::try_from(clock.now().0).unwrap_or(0);
        Self {
            cache: FoldCache::new(config.fold_cache),
            feed: Arc::default(),
            trouble: Mutex::default(),
            era: tokio::sync::Mutex::default(),
            witness: Witness::new(&bus, Marked::Dispatches),
            void_cursors: Mutex::default(),
            settled: Mutex::default(),
            stopping: OnceLock::new(),
            parked: RwLock::default(),
            running: Mutex::default(),
            waiting: AtomicU64::new(0),
            counter: AtomicU64::new(started.saturating_mul(COUNTERS_PER_MS)),
            policies: Mutex::default(),
            echo: Arc::new(Echo),
            nats: Arc::new(Nats::new(bus.clone())),
            instead: None,
            process: Arc::new(Process::new(Arc::new(personas.clone()), bus.clone())),
            hooks: Arc::new(Hooks::new(
                HookRules::default(),
                bus.clone(),
                Arc::clone(&clock),
                &instance,
            )),
            llm: None,
            desk: Arc::new(Desk::new(
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

    /// What holds of the streams: over the connection that stands, and since it was found last that the ledger does not know
    /// everything; found out by whoever asks first. With every era what this broker remembers is forgotten: it may count
    /// streams that are gone.
    ///
    /// # Errors
    /// [`WitnessError`] if the leader cannot be asked.
    pub async fn era(&self) -> Result<Arc<Era>, WitnessError> {
        let mut era = self.era.lock().await;
        let connection = self.bus.connection_number();
        let doubt_until = self.witness.doubt_until(self.clock.now()).await?;
        let stands = |known: &&Arc<Era>| known.connection == connection && known.doubt_until == doubt_until;

        if let Some(known) = era.as_ref().filter(stands) {
            return Ok(Arc::clone(known));
        }

        let info = self.bus.stream_info(DISPATCHES).await?;
        self.cache.clear();
        self.settled(|settled| *settled = Settled::default());

        let found = Arc::new(Era {
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

    /// The witness of the ledger.
    #[must_use]
    pub fn ledger_witness(&self) -> Witness {
        self.witness.clone()
    }

    /// Notes that the cursor of `session` is void, for the reason `why`, or holds, or its ledger was asked (`None`).
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

    /// What holds for the queues of `persona`'s sessions.
    #[must_use]
    pub fn policy(&self, persona: &str) -> Arc<Policy> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = self.personas.of(persona).queue;
        let policy = policies.entry(settings).or_insert_with(|| {
            Arc::new(Policy {
                common: settings.or(self.config.queue),
                channels: self.config.queue_by_channel.clone(),
                presets: self.personas.permission_levels.clone(),
            })
        });

        Arc::clone(policy)
    }

    /// It, with `agent` answering for everybody, whatever the personas say.
    #[must_use]
    pub fn answering(mut self, agent: Arc<dyn Agent>) -> Self {
        self.instead = Some(agent);
        self
    }

    /// It, knowing who is who.
    #[must_use]
    pub fn knowing(mut self, identities: Identities) -> Self {
        let config = self.config.approvals.clone();
        let clock = Arc::clone(&self.clock);
        self.desk = Arc::new(Desk::new(&self.bus, clock, Arc::new(identities), config));
        self
    }

    /// Where approvals are kept.
    #[must_use]
    pub const fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// With `model` for personas that ask one.
    #[must_use]
    pub fn with_model(mut self, model: SharedModel) -> Self {
        let personas = Arc::new(self.personas.clone());
        self.llm = Some(Arc::new(Llm::new(model, personas, self.bus.clone(), &self.clock)));
        self
    }

    /// With the hooks of `rules` within turns.
    #[must_use]
    pub fn with_hooks(mut self, rules: HookRules) -> Self {
        let clock = Arc::clone(&self.clock);
        self.hooks = Arc::new(Hooks::new(rules, self.bus.clone(), clock, &self.instance));
        let process = Process::new(Arc::new(self.personas.clone()), self.bus.clone());
        self.process = Arc::new(process.heeding(Arc::clone(&self.hooks)));
        self
    }

    /// The hooks within turns.
    #[must_use]
    pub const fn hooks(&self) -> &Arc<Hooks> {
        &self.hooks
    }

    /// Who answers behind `runner`. A persona that asks a model where there is none is one whose agent is not there.
    #[must_use]
    pub fn agent(&self, runner: Runner) -> Arc<dyn Agent> {
        if let Some(instead) = &self.instead {
            return Arc::clone(instead);
        }
        match runner {
            Runner::Echo => Arc::clone(&self.echo),
            Runner::Nats => Arc::clone(&self.nats),
            Runner::Process => Arc::clone(&self.process),
            Runner::Llm => Arc::clone(self.llm.as_ref().unwrap_or(&self.nats)),
        }
    }

    /// A number that no append of this process had before.
    #[must_use]
    pub fn next_append(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// How many claims wait for a broker, as far as was heard.
    #[must_use]
    pub fn claims_waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Notes how many claims wait.
    pub fn note_waiting(&self, claims: u64) {
        self.waiting.store(claims, Ordering::Relaxed);
    }

    /// What this broker has consumed of `DISPATCHES`, for the sweeper to skip.
    pub fn settled<T>(&self, act: impl FnOnce(&mut Settled) -> T) -> T {
        act(&mut self.settled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that a worker runs `session`, until the guard is dropped.
    #[must_use]
    pub fn enter(self: &Arc<Self>, session: &SessionRef) -> RunningGuard {
        *self.lock_running().entry(session.clone()).or_default() += 1;
        RunningGuard {
            broker: Arc::clone(self),
            session: session.clone(),
        }
    }

    /// Whether a worker here runs `session`.
    #[must_use]
    pub fn runs(&self, session: &SessionRef) -> bool {
        self.lock_running().contains_key(session)
    }

    /// Notes that the request to stop was heard: running turns have until [`Broker::drain`] from now.
    pub fn begin_stop(&self) {
        let _ = self.stopping.set(self.clock.monotonic());
    }

    /// When the request to stop was heard.
    #[must_use]
    pub fn stopping_since(&self) -> Option<Instant> {
        self.stopping.get().copied()
    }

    /// Notes that a session could not be run because the server did not answer as it should.
    pub fn note_trouble(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.monotonic());
    }

    /// Whether that happened lately: then a claim that came again and again says nothing about its session.
    #[must_use]
    pub fn had_trouble(&self) -> bool {
        let at = *self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| self.clock.monotonic().saturating_duration_since(at) < TROUBLE_LASTS)
    }

    /// Whether the session of these subject tokens is quarantined.
    #[must_use]
    pub fn is_parked(&self, key: &str) -> bool {
        self.parked
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(key)
    }

    /// Notes that the session of these subject tokens is quarantined (some) or is not; answers what was noted before.
    pub fn park(&self, key: &str, session: Option<SessionRef>) -> Option<SessionRef> {
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

/// A session counts as run here while this lives.
#[derive(Debug)]
pub struct RunningGuard {
    broker: Arc<Broker>,
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
