//! View of the hook registry on this replica: KV `hooks` and `hook_state` are watched and made into the current roster.
//!
//! A change is in force within a second: the watch reports it, changes that arrive together are applied together, the
//! workers load the new set, and events handed over afterwards are evaluated against it. Events in flight keep the set
//! they began with, so nothing is lost or seen twice.
//!
//! Every decision is a compare-and-set in KV; a watched value may be old and is never the basis of a decision.
//!
//! Pure: `metadata` (a file's header), `sync` (changes by a file), `authored` (changes by a tool or a push), `rights`,
//! `one_shot`, `timers` (schedules), `active_hooks` (the roster). Shells: `view` (the watches), `directory` (the
//! folder), `hook_commands` and `hook_api` (requests), `agent_files` (copies for people).

pub mod active_hooks;
pub(crate) mod agent_files;
pub mod authored;
pub mod directory;
pub mod hook_api;
pub mod hook_commands;
pub mod metadata;
pub mod one_shot;
pub mod rights;
pub mod sync;
pub mod timers;
mod view;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::{SharedClock, pause};
use shared::model::event::EventId;
use shared::model::hook::{HookRecord, HookResult, HookState};
use shared::model::schedule::ScheduleSpec;
use shared::model::time::UnixMillis;
use shared::schedule::book::ScheduleBook;
use shared::wire::subject::token;
use shared::wire::topology::buckets::{CHANNELS, HOOK_STATE, HOOKS};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::registry::active_hooks::{ActiveHooks, waits_for};
use crate::registry::authored::is_deleted;
use crate::registry::one_shot::{HookTally, OneShotVerdict};
use crate::runner::{HookCounters, HookSet, WorkerPools};

pub use view::RegistryPosition;
use view::{RegistryChange, RegistryView, forward_changes, synced_again};

/// Wait after a change for further ones, so that a whole directory is loaded at once.
const COALESCE: Duration = Duration::from_millis(25);

/// Most changes that wait to be applied; beyond that the watch waits.
const CHANGES: usize = 4_096;

/// Number of rosters kept for events that began with them.
const KEPT_ROSTERS: usize = 16;

/// Most retries of a compare-and-set after a conflict.
const MAX_TRIES: u32 = 20;

/// Pause before a set that the workers did not load is offered again.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// Outcome of a hook's last fire.
#[derive(Debug, Clone, PartialEq)]
pub enum LastFire {
    /// The event won, and this result counts.
    Won(Box<HookResult>),
    /// The fire is suppressed, for this reason.
    Lost(&'static str),
}

/// View of the registry on this replica; cheap to clone.
#[derive(Debug, Clone)]
pub struct HookRegistry {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    hooks: Kv<HookRecord>,
    states: Kv<HookState>,
    bus: Bus,
    pool: WorkerPools,
    /// Rosters, the newest last; never empty.
    rosters: Mutex<VecDeque<Arc<ActiveHooks>>>,
    tallies: Mutex<HashMap<String, HookTally>>,
    listed: watch::Sender<ListedHooks>,
    /// Time zone of schedules that name none.
    zone: String,
    /// Schedules of all hooks; `None` until the registry is known.
    schedules: watch::Sender<Option<Vec<ScheduleSpec>>>,
}

/// Every hook of the registry with its run-time state.
pub type ListedHooks = Arc<Vec<(HookRecord, HookState)>>;

/// Result of handing a set of hooks to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Not,
    /// The hooks of some authors are not run.
    Partly,
    Whole,
}

impl HookRegistry {
    /// Creates the view on `bus`, empty until [`HookRegistry::follow_buckets`] has read it. `pool` evaluates its hooks; `zone` is
    /// the time zone of schedules that name none.
    #[must_use]
    pub fn new(bus: &Bus, pool: WorkerPools, zone: &str) -> Self {
        let inner = Inner {
            hooks: bus.kv(HOOKS),
            states: bus.kv(HOOK_STATE),
            bus: bus.clone(),
            pool,
            rosters: Mutex::new(VecDeque::from([Arc::new(ActiveHooks::default())])),
            tallies: Mutex::default(),
            listed: watch::Sender::default(),
            zone: zone.to_owned(),
            schedules: watch::channel(None).0,
        };

        Self { inner: Arc::new(inner) }
    }

    /// Follows both buckets; never returns. `loaded` receives the revision of `hooks` that the workers have loaded, and
    /// `era` the number of times that the bucket was replaced. After a replacement the former hooks stay in force until
    /// the hooks directory, if there is one, is `synced` into the new bucket.
    pub async fn follow_buckets(
        &self,
        loaded: watch::Sender<Option<RegistryPosition>>,
        era: watch::Sender<u64>,
        mut synced: Option<watch::Receiver<Option<RegistryPosition>>>,
    ) {
        // Bounded: the watches pause while the loading of hooks is slow.
        let (sender, mut changes) = mpsc::channel(CHANGES);
        let mut watches = JoinSet::new();
        watches.spawn(forward_changes(
            self.inner.hooks.clone(),
            RegistryChange::Hook,
            sender.clone(),
        ));
        watches.spawn(forward_changes(
            self.inner.states.clone(),
            RegistryChange::State,
            sender.clone(),
        ));
        let channels = self.inner.bus.kv(CHANNELS);
        watches.spawn(forward_changes(channels, RegistryChange::Channels, sender));
        let mut waiting = BTreeMap::new();

        let mut view = RegistryView::default();
        let mut taken = Taken::Whole;
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = synced_again(&mut synced) => None,
                () = pause(RELOAD_PAUSE), if taken != Taken::Whole => None,
            };

            if let Some(change) = change {
                view.take(change, &self.inner.pool);
                // Several changes usually come together, and each load costs the workers work.
                pause(COALESCE).await;
            }

            while let Ok(change) = changes.try_recv() {
                view.take(change, &self.inner.pool);
            }

            era.send_if_modified(|known| std::mem::replace(known, view.era) != view.era);

            // Before all buckets are read, hooks that exist would seem deleted.
            if view.is_whole(synced.as_ref()) {
                taken = self.load(&view, taken == Taken::Partly).await;
                self.tell_schedules(&view);
                tell_waiting(&mut waiting, &view);
                // Readers of `loaded` rely on these hooks being in force.
                if taken != Taken::Not {
                    loaded.send_replace(Some(view.reached_revision()));
                }
            }
        }
    }

    /// Keeps KV `schedules` equal to the hooks' schedules; never returns. Every replica does this, with the same
    /// outcome.
    pub async fn keep_schedules(&self, clock: SharedClock) {
        let book = ScheduleBook::new(&self.inner.bus);
        let mut told = self.inner.schedules.subscribe();
        loop {
            let specs = told.borrow_and_update().clone();
            let written = match &specs {
                Some(specs) => book.replace_schedules(timers::PREFIX, specs, clock.now()).await,
                None => Ok(()),
            };
            if let Err(error) = &written {
                tracing::warn!(
                    error = shared::error_chain::describe_error(error),
                    "failed to write schedules of hooks; retrying"
                );
            }

            tokio::select! {
                changed = told.changed() => if changed.is_err() { return },
                // A failed write is repeated even if nothing changes meanwhile.
                () = pause(RELOAD_PAUSE), if written.is_err() => {}
            }
        }
    }

    fn tell_schedules(&self, view: &RegistryView) {
        let (specs, wrong) = timers::timer_specs(&view.records, &view.states, &view.channels, &self.inner.zone);
        self.inner.schedules.send_if_modified(|told| {
            let changed = told.as_ref() != Some(&specs);
            if changed {
                for (hook_id, error) in &wrong {
                    tracing::error!(hook_id, error, "invalid schedule of a hook");
                }
                *told = Some(specs);
            }

            changed
        });
    }

    /// Puts the roster of `view` in force, even if it is unchanged when `again` is true. Returns whether the workers
    /// loaded its hooks.
    async fn load(&self, view: &RegistryView, again: bool) -> Taken {
        let former = self.current_roster();
        let mut roster = ActiveHooks::from_records(&view.records, &view.states, &view.channels);
        let changed = roster.set.hooks() != former.set.hooks();
        if !changed {
            roster.set = Arc::clone(&former.set);
        }

        let (hooks, set) = (roster.set.hooks().len(), Arc::clone(&roster.set));
        // The roster must be found as soon as the workers evaluate events against its set.
        self.keep_roster(Arc::new(roster));

        let mut taken = Taken::Whole;
        if changed || again {
            match self.inner.pool.load(set).await {
                Ok(failed) if failed.is_empty() => {}
                Ok(_) => taken = Taken::Partly,
                Err(error) => {
                    tracing::error!(
                        error = shared::error_chain::describe_error(&error),
                        "failed to load hooks; keeping the former ones"
                    );
                    self.keep_roster(former);
                    return Taken::Not;
                }
            }
        }

        if changed {
            // Counters sent before the set was in force reached no worker.
            for (key, state) in &view.states {
                view.count(key, state, &self.inner.pool);
            }
        }

        let state = |key: &String| view.states.get(key).cloned().unwrap_or_default();
        let all = view.records.iter().map(|(key, record)| (record.clone(), state(key)));
        self.inner.listed.send_replace(Arc::new(all.collect()));

        if changed {
            tracing::info!(hooks, "hooks loaded");
            metrics::gauge!("nexus_hook_hooks_total").set(hooks as f64);
        }

        taken
    }

    /// Returns a receiver of all hooks in the watched state, including those that see no events.
    #[must_use]
    pub fn watch_hooks(&self) -> watch::Receiver<ListedHooks> {
        self.inner.listed.subscribe()
    }

    fn keep_roster(&self, roster: Arc<ActiveHooks>) {
        let mut rosters = self.inner.rosters.lock().unwrap_or_else(PoisonError::into_inner);
        rosters.push_back(roster);
        if rosters.len() > KEPT_ROSTERS {
            rosters.pop_front();
        }
    }

    /// Returns the newest roster.
    #[must_use]
    pub fn current_roster(&self) -> Arc<ActiveHooks> {
        let rosters = self.inner.rosters.lock().unwrap_or_else(PoisonError::into_inner);
        rosters.back().map(Arc::clone).unwrap_or_default()
    }

    /// Returns the roster whose set is `set`; the newest if that is no longer kept.
    #[must_use]
    pub fn roster_of(&self, set: &Arc<HookSet>) -> Arc<ActiveHooks> {
        let rosters = self.inner.rosters.lock().unwrap_or_else(PoisonError::into_inner);
        let known = rosters.iter().rev().find(|roster| Arc::ptr_eq(&roster.set, set));
        known.or(rosters.back()).map(Arc::clone).unwrap_or_default()
    }

    /// Decides the last fire of the hook `hook_id` created at `made_at`, for the occurrence `key`. The decision is
    /// stored, and the hook disabled, before this returns.
    ///
    /// # Errors
    /// Returns [`CasError`] if the bucket is unavailable, or after too many conflicts.
    pub async fn last_fire(
        &self,
        (hook_id, made_at): (&str, UnixMillis),
        key: &EventId,
        result: &HookResult,
        now: UnixMillis,
    ) -> Result<LastFire, CasError> {
        // The state decides by compare-and-set, so of two replicas exactly one wins.
        let mut decided = LastFire::Lost(crate::evaluation::record::HOOK_DISABLED);
        let decide = |state: Option<&HookState>| match one_shot::last_fire(state, key, result, now) {
            OneShotVerdict::Win(next) => {
                decided = LastFire::Won(Box::new(result.clone()));
                Some(*next)
            }
            OneShotVerdict::Won(stored) => {
                decided = LastFire::Won(stored);
                None
            }
            OneShotVerdict::Lost(reason) => {
                decided = LastFire::Lost(reason);
                None
            }
        };

        // A hook that was deleted and created again under its name must not use the old decision.
        let meant = Meant {
            hooks: &self.inner.hooks,
            made_at,
        };
        if !change_meant(&self.inner.states, Some(meant), hook_id, decide).await? {
            decided = LastFire::Lost(crate::evaluation::record::HOOK_REPLACED);
        }

        Ok(decided)
    }

    /// Disables the hook `hook_id` created at `made_at`, which asked for it without firing.
    ///
    /// # Errors
    /// As [`HookRegistry::last_fire`].
    pub async fn retire_hook(&self, hook_id: &str, made_at: UnixMillis) -> Result<(), CasError> {
        let meant = Meant {
            hooks: &self.inner.hooks,
            made_at,
        };
        let retired = change_meant(&self.inner.states, Some(meant), hook_id, one_shot::retired_state);
        retired.await.map(drop)
    }

    /// Counts a fire of `hook_id`, which reads its counters, for the occurrence `key`. The count is stored once, and
    /// sent to the workers, before this returns. After a failed write the fire is noted as for any other hook: a
    /// counter is not worth an event.
    ///
    /// # Errors
    /// Returns [`CasError::Read`] if the bus is unavailable: nothing is noted then, because the event is tried again.
    pub async fn count_fire(&self, hook_id: &str, key: &EventId, now: UnixMillis) -> Result<(), CasError> {
        let mut counters = None;
        let count = |state: Option<&HookState>| {
            let next = one_shot::counted_state(state, key, now);
            counters = next.as_ref().or(state).map(HookCounters::from);
            next
        };

        match self.change_state(hook_id, count).await {
            Ok(_) => {
                if let Some(counters) = counters {
                    self.inner.pool.count(hook_id, counters);
                }
            }
            Err(error @ CasError::Read(_)) => return Err(error),
            // The count is repeated in the background: the event must not wait for it.
            Err(error @ (CasError::Conflict { .. } | CasError::Publish(_))) => {
                tracing::warn!(hook_id, %error, "failed to count a fire of a hook; retrying");
                self.tally_fire(hook_id, now);
            }
        }

        Ok(())
    }

    /// Notes that `hook_id` fired at `now`.
    pub fn tally_fire(&self, hook_id: &str, now: UnixMillis) {
        self.add_tally(hook_id, |tally| {
            tally.fires += 1;
            tally.last_triggered = tally.last_triggered.max(Some(now));
        });
    }

    /// Notes that `hook_id` failed with `error`.
    pub fn count_failure(&self, hook_id: &str, error: &str) {
        self.add_tally(hook_id, |tally| tally.last_error = Some(error.to_owned()));
    }

    /// Writes the counters noted since the last time. A counter that cannot be written is kept for the next time.
    pub async fn flush(&self) {
        let tallies = std::mem::take(&mut *self.inner.tallies.lock().unwrap_or_else(PoisonError::into_inner));
        for (hook_id, tally) in tallies {
            if let Err(error) = self
                .change_state(&hook_id, |state| Some(one_shot::tallied_state(state, &tally)))
                .await
            {
                tracing::warn!(hook_id, %error, "failed to write the counters of a hook; retrying");
                self.add_tally(&hook_id, |kept| {
                    kept.fires += tally.fires;
                    kept.last_triggered = kept.last_triggered.max(tally.last_triggered);
                    kept.last_error = kept.last_error.take().or(tally.last_error);
                });
            }
        }
    }

    fn add_tally(&self, hook_id: &str, note: impl FnOnce(&mut HookTally)) {
        let mut tallies = self.inner.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        match tallies.get_mut(hook_id) {
            Some(tally) => note(tally),
            None => note(tallies.entry(hook_id.to_owned()).or_default()),
        }
    }

    async fn change_state(
        &self,
        hook_id: &str,
        next: impl FnMut(Option<&HookState>) -> Option<HookState>,
    ) -> Result<(), CasError> {
        change_state(&self.inner.states, hook_id, next).await
    }
}

/// Logs the hooks that begin or stop waiting for a channel, once each; `told` holds those logged before.
fn tell_waiting(told: &mut BTreeMap<String, String>, view: &RegistryView) {
    let enabled = view.records.values().filter(|record| record.enabled);
    let waiting: BTreeMap<String, String> = enabled
        .filter_map(|record| Some((record.id.clone(), waits_for(record, &view.channels)?.to_owned())))
        .collect();
    for (hook_id, channel) in waiting.iter().filter(|(id, channel)| told.get(*id) != Some(*channel)) {
        tracing::warn!(
            hook_id,
            channel,
            "hook inactive: a channel that it needs is not configured"
        );
    }

    for hook_id in told.keys().filter(|id| !waiting.contains_key(*id)) {
        tracing::info!(hook_id, "hook active: its channels are configured");
    }

    *told = waiting;
}

/// Changes a hook's state by compare-and-set until it succeeds or `next` returns no change.
pub(crate) async fn change_state(
    states: &Kv<HookState>,
    hook_id: &str,
    next: impl FnMut(Option<&HookState>) -> Option<HookState>,
) -> Result<(), CasError> {
    change_meant(states, None, hook_id, next).await.map(drop)
}

/// Identifies one hook among all that have had its name.
#[derive(Clone, Copy)]
struct Meant<'a> {
    hooks: &'a Kv<HookRecord>,
    made_at: UnixMillis,
}

impl Meant<'_> {
    /// Returns whether the registry still holds the hook, read from the leader; true for a hook that has no entry
    /// there.
    async fn is_there(self, key: &str) -> Result<bool, CasError> {
        let (entry, _) = self.hooks.find(key).await?;
        Ok(entry.is_none_or(|record| record.created_at == self.made_at && !is_deleted(&record)))
    }
}

/// As [`change_state`]. Returns false if nothing was changed because the hook `meant` no longer exists.
async fn change_meant(
    states: &Kv<HookState>,
    meant: Option<Meant<'_>>,
    hook_id: &str,
    mut next: impl FnMut(Option<&HookState>) -> Option<HookState>,
) -> Result<bool, CasError> {
    let key = token(hook_id);
    let mut tries = 0;
    loop {
        let entry = states.get(&key).await?;
        let Some(state) = next(entry.as_ref().map(|entry| &entry.value)) else {
            return Ok(true);
        };

        // This check comes after the state was read: a replica that creates another hook of this name writes the state
        // first, so the write below, on the older revision, is refused.
        if let Some(meant) = meant
            && !meant.is_there(&key).await?
        {
            return Ok(false);
        }

        let written = match &entry {
            None => states.create(&key, &state).await,
            Some(entry) => states.update(&key, &state, entry.revision).await,
        };
        match written {
            Ok(_) => return Ok(true),
            Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}
