//! Keeps this replica's hooks loaded and listed, and decides whether the replica takes part.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::clock::pause;
use shared::process::{Health, ServiceShell};
use shared::projection::{ListedHook, Projection};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::HooksConfig;
use crate::health::admission::{AdmissionCondition, takes_part};
use crate::health::breakers::HookBreakers;
use crate::read_model::access::{ModelAccess, ModelStanding};
use crate::registry::agent_files::AgentFiles;
use crate::registry::directory::HooksDirectory;
use crate::registry::{HookRegistry, ListedHooks, RegistryPosition};
use crate::runner::WorkerPools;

/// Interval at which the replica decides whether it takes part.
const ADMISSION: Duration = Duration::from_millis(200);

/// Time after which a copy that cannot be written counts as such: a lock passes sooner, and evaluation stops later.
const FAULTY: Duration = Duration::from_secs(3);

/// Shortest and longest time between two writes of the read model's table of hooks.
const LIST_PAUSE: Duration = Duration::from_secs(1);
const LIST_AGAIN: Duration = Duration::from_secs(30);

/// State that shows whether this replica's hooks are loaded.
pub(crate) struct LoadedHooks {
    /// Position from which on the registry holds the directory, `None` before the first sync; no receiver without a
    /// directory.
    synced: Option<watch::Receiver<Option<RegistryPosition>>>,
    /// Position up to which the workers hold the registry; `None` before the first load.
    loaded: watch::Receiver<Option<RegistryPosition>>,
}

/// Finds out whether the own copy cannot be written for longer than a lock lasts.
#[derive(Debug, Default)]
struct LastingFault {
    /// Time of the first look that found a fault, since none was found.
    since: Option<Instant>,
}

impl LastingFault {
    /// Notes the `fault` found at `now`, and returns it if one has been found for [`FAULTY`].
    fn note(&mut self, fault: Option<String>, now: Instant) -> Option<String> {
        self.since = fault.is_some().then(|| self.since.unwrap_or(now));
        let lasts = self
            .since
            .is_some_and(|since| now.saturating_duration_since(since) >= FAULTY);
        fault.filter(|_| lasts)
    }
}

/// Starts the tasks that keep hooks up to date.
pub(crate) fn start_hooks(
    shell: &ServiceShell<HooksConfig>,
    registry: &HookRegistry,
    background: &mut JoinSet<()>,
) -> LoadedHooks {
    let (loaded_sender, loaded) = watch::channel(None);
    let (era_sender, era) = watch::channel(0);
    let (synced_sender, synced) = watch::channel(None);
    let synced = (!shell.config.dir.is_empty()).then_some(synced);
    let (following, after) = (registry.clone(), synced.clone());
    background.spawn(async move { following.follow_buckets(loaded_sender, era_sender, after).await });

    if !shell.config.agent_dir.is_empty() {
        let files = AgentFiles::new(&shell.bus, PathBuf::from(&shell.config.agent_dir));
        background.spawn(async move { files.follow_registry().await });
    }

    // Without a directory the hooks come from the registry alone.
    if synced.is_none() {
        return LoadedHooks { synced, loaded };
    }

    let (path, root) = (PathBuf::from(&shell.config.dir), shell.config.root.clone());
    let directory = HooksDirectory::new(path, root, &shell.bus, Arc::clone(&shell.clock));
    background.spawn(async move { directory.follow_directory(synced_sender, era).await });

    LoadedHooks { synced, loaded }
}

impl LoadedHooks {
    fn are_loaded(&self) -> bool {
        let loaded = *self.loaded.borrow();
        match &self.synced {
            None => loaded.is_some(),
            Some(synced) => matches!((*synced.borrow(), loaded), (Some(from), Some(to)) if to.covers(from)),
        }
    }

    /// Decides repeatedly whether this replica takes part, and reports it to `joined` and the health page.
    pub(crate) fn run_admission(
        self,
        shell: &ServiceShell<HooksConfig>,
        model: &ModelAccess,
        pool: &WorkerPools,
        joined: watch::Sender<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (model, pool) = (model.clone(), pool.clone());
        let (clock, health) = (Arc::clone(&shell.clock), shell.health.clone());
        async move {
            let mut is_beside = false;
            let mut faults = LastingFault::default();
            loop {
                let standing = model.standing(clock.now());
                // The only copy is waited for, since no other could tell which ids occurred long ago. Beside other copies
                // nothing waits for it but the hooks that read, even if all are being built. A replica that takes part
                // beside another copy goes on if that one is gone: its end must not stop this one as well.
                is_beside = !model.peers().names().is_empty() || (is_beside && *joined.borrow());
                // A copy that cannot be written does not come nearer while the replica waits for it.
                let fault = faults.note(model.write_fault(), clock.monotonic());
                let condition = AdmissionCondition {
                    lag: counted_lag(&standing, !is_beside && fault.is_none()),
                    hooks_loaded: self.are_loaded(),
                    workers: pool.ready_workers(),
                };
                let takes_part = takes_part(*joined.borrow(), condition);
                joined.send_if_modified(|before| std::mem::replace(before, takes_part) != takes_part);
                report_condition(&health, condition, takes_part);
                let is_prompt = model.is_worth_waiting();
                report_model(&health, &standing, is_beside, is_prompt, fault.as_deref());
                pause(ADMISSION).await;
            }
        }
    }
}

/// Keeps the read model's table of hooks equal to the registry; a recreated file gets it within [`LIST_AGAIN`].
pub(crate) async fn list_hooks(
    mut listed: watch::Receiver<ListedHooks>,
    breakers: HookBreakers,
    projection: Projection,
) {
    let mut circuits = breakers.subscribe_changes();
    loop {
        circuits.mark_unchanged();
        let circuit = |id: &str| {
            breakers
                .breaker_of(id)
                .map(|breaker| breaker.circuit)
                .unwrap_or_default()
        };
        let known = Arc::clone(&listed.borrow_and_update());
        let hooks = known.iter().map(|(record, state)| ListedHook {
            record: record.clone(),
            state: state.clone(),
            circuit: circuit(&record.id),
        });

        let hooks = hooks.collect();
        if let Err(error) = projection.list_hooks(hooks).await {
            tracing::warn!(%error, "failed to write hooks to the read model");
        }

        pause(LIST_PAUSE).await;
        // The table is written again after a time-out or after any change.
        let changed = async {
            tokio::select! {
                _ = listed.changed() => {}
                _ = circuits.changed() => {}
            }
        };

        let _ = tokio::time::timeout(LIST_AGAIN, changed).await;
    }
}

/// Returns how far the own copy is behind, where the replica depends on it; one that asks others is not behind.
const fn lag_of(standing: &ModelStanding) -> Option<Duration> {
    match standing {
        ModelStanding::Undecided => None,
        ModelStanding::Own(lag) | ModelStanding::Building(lag) => *lag,
        ModelStanding::Peers(_) | ModelStanding::Lost => Some(Duration::ZERO),
    }
}

/// Returns the lag that keeps the replica from taking part. `is_needed`: whether all evaluation waits for the own copy.
const fn counted_lag(standing: &ModelStanding, is_needed: bool) -> Option<Duration> {
    match standing {
        ModelStanding::Own(_) | ModelStanding::Building(_) if !is_needed => Some(Duration::ZERO),
        // It answers a moment after it has come near enough.
        ModelStanding::Building(_) => None,
        ModelStanding::Own(_) | ModelStanding::Undecided | ModelStanding::Peers(_) | ModelStanding::Lost => {
            lag_of(standing)
        }
    }
}

/// Reports which copy answers questions to the read model. Without any copy, and while all are being built, only the
/// hooks that read it wait. `is_beside`: whether other replicas keep copies too; `is_prompt`: whether evaluations that wait for
/// a copy get on. `fault`: why this replica's copy cannot be written.
fn report_model(health: &Health, standing: &ModelStanding, is_beside: bool, is_prompt: bool, fault: Option<&str>) {
    let prompt = if is_prompt { 1.0 } else { 0.0 };
    let (own, answers) = match standing {
        ModelStanding::Own(_) => (2.0, prompt),
        ModelStanding::Building(_) => (1.0, 0.0),
        ModelStanding::Peers(_) => (0.0, prompt),
        ModelStanding::Undecided | ModelStanding::Lost => (0.0, 0.0),
    };
    metrics::gauge!("nexus_hook_read_model_copy").set(own);
    metrics::gauge!("nexus_hook_read_model_answers").set(answers);

    let lag = lag_of(standing);
    metrics::gauge!("nexus_hook_projection_lag_seconds").set(lag.unwrap_or_default().as_secs_f64());
    let unwritable = if fault.is_some() { 1.0 } else { 0.0 };
    metrics::gauge!("nexus_hook_read_model_unwritable").set(unwritable);
    if let Some(fault) = fault {
        health.set_degraded("projection", &fault_detail(fault, lag));
        return;
    }

    match standing {
        ModelStanding::Undecided => health.set("projection", false, "waiting to learn which replicas keep a copy"),
        ModelStanding::Building(lag) if is_beside => {
            let lag = lag_text(*lag);
            let detail = format!(
                "the read model is being built here, and no copy answers; hooks that read it are waiting; behind by: {lag}"
            );
            health.set_degraded("projection", &detail);
        }
        ModelStanding::Own(lag) if !is_prompt => {
            let lag = lag_text(*lag);
            let detail = format!("the read model stands still; hooks that read it are waiting; behind by: {lag}");
            health.set_degraded("projection", &detail);
        }
        ModelStanding::Own(lag) | ModelStanding::Building(lag) => {
            health.set("projection", lag.is_some(), format!("behind by: {}", lag_text(*lag)));
        }
        ModelStanding::Peers(names) if !is_prompt => {
            let names = names.join(", ");
            let detail = format!("the copies of {names} are far behind; hooks that read them are waiting");
            health.set_degraded("projection", &detail);
        }
        ModelStanding::Peers(names) => {
            health.set("projection", true, format!("uses the copies of {}", names.join(", ")));
        }
        ModelStanding::Lost => {
            health.set_degraded(
                "projection",
                "no copy of the read model answers; hooks that read it are waiting",
            );
        }
    }
}

fn fault_detail(fault: &str, lag: Option<Duration>) -> String {
    let lag = lag_text(lag);
    format!(
        "this replica's copy of the read model cannot be written, which is tried again: {fault}; hooks that read it ask another copy or wait; behind by: {lag}"
    )
}

fn lag_text(lag: Option<Duration>) -> String {
    lag.map_or_else(|| "not known yet".to_owned(), |lag| format!("{} ms", lag.as_millis()))
}

fn report_condition(health: &Health, condition: AdmissionCondition, takes_part: bool) {
    let detail = if condition.hooks_loaded {
        "loaded"
    } else {
        "not loaded yet"
    };

    health.set("hooks", condition.hooks_loaded, detail);
    health.set("workers", condition.workers > 0, format!("{} up", condition.workers));
    health.set(
        "partitions",
        takes_part,
        if takes_part {
            "takes part"
        } else {
            "not a member of the replica group yet"
        },
    );
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn a_fault_counts_once_it_has_lasted_and_a_look_without_one_begins_its_time_again() {
        let begun = SystemClock.monotonic();
        let full = || Some("full".to_owned());
        let mut faults = LastingFault::default();
        assert_eq!(faults.note(full(), begun), None);
        assert_eq!(faults.note(full(), begun + FAULTY), full());
        assert_eq!(faults.note(None, begun + FAULTY), None);
        assert_eq!(faults.note(full(), begun + 2 * FAULTY), None);
    }

    #[test]
    fn a_copy_that_cannot_be_written_is_reported_and_does_not_make_the_replica_unready() {
        let health = Health::default();
        let late = ModelStanding::Building(Some(Duration::from_secs(60)));
        for is_beside in [false, true] {
            report_model(&health, &late, is_beside, false, Some("database or disk is full"));
            let readiness = health.readiness();
            let part = &readiness.parts["projection"];
            assert!(readiness.ready && part.degraded, "{part:?}");
            assert!(
                part.detail.contains("disk is full") && part.detail.contains("60000 ms"),
                "{part:?}"
            );
        }

        report_model(&health, &ModelStanding::Own(Some(Duration::ZERO)), false, true, None);
        assert!(!health.readiness().parts["projection"].degraded);
    }

    #[test]
    fn a_copy_that_nobody_needs_holds_up_nothing() {
        let late = Some(Duration::from_secs(3_600));
        for (standing, needed) in [(ModelStanding::Own(late), late), (ModelStanding::Building(late), None)] {
            assert_eq!(counted_lag(&standing, true), needed, "{standing:?}");
            assert_eq!(counted_lag(&standing, false), Some(Duration::ZERO), "{standing:?}");
        }

        // It is not known how far a copy is at its start: its readers wait, and nothing else does.
        assert_eq!(counted_lag(&ModelStanding::Building(None), true), None);
        assert_eq!(counted_lag(&ModelStanding::Building(None), false), Some(Duration::ZERO));

        // Whether this replica keeps one decides who reads its partitions.
        assert_eq!(counted_lag(&ModelStanding::Undecided, false), None);
        assert_eq!(counted_lag(&ModelStanding::Lost, true), Some(Duration::ZERO));
    }
}
