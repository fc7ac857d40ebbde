//! Wiring of the service: files and registry → workers; streams → read model; partitions → owner.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use shared::breaker::BreakerPolicy;
use shared::bus::partition::{self, Group};
use shared::bus::{Bus, ServiceHandle, ServiceSpec, Tap};
use shared::clock::{OffsetClock, pause};
use shared::llm::LlmConfig;
use shared::model::session::DmScope;
use shared::process::config::{Fault, KeyFault, file_faults};
use shared::process::identities::People;
use shared::process::lifecycle::Shutdown;
use shared::process::{Common, Health, Service, Shell};
use shared::projection::{ListedHook, Projection, feed};
use shared::wire::topology::streams::EVENTS;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::{Condition, takes_part};
use crate::agent_files::AgentFiles;
use crate::answers::Answers;
use crate::bindings::{self, Bindings};
use crate::breakers::Breakers;
use crate::config::HooksConfig;
use crate::desk::Desk;
use crate::directory::Directory;
use crate::evaluate::Evaluator;
use crate::fetch::FetchHost;
use crate::fire::Performer;
use crate::hook_api::{self, HookApi};
use crate::keeper::Keeper;
use crate::lab::{Lab, pool_config};
use crate::llm::{self, Budget, Limits, LlmHost};
use crate::lost::LostDispatches;
use crate::meters::Meters;
use crate::owner::Owner;
use crate::registry::{Listed, Reached, Registry};
use crate::routing::Rules;
use crate::runner::{Host, Pools, user_fault};
use crate::{embed, events_api, identities, model_log, snapshot, strays};

/// Interval at which the replica decides whether it takes part.
const ADMISSION: Duration = Duration::from_millis(200);

/// Interval at which hooks' counters are written.
const FLUSH: Duration = Duration::from_secs(5);

/// Shortest and longest time between two writes of the read model's table of hooks.
const LIST_PAUSE: Duration = Duration::from_secs(1);
const LIST_AGAIN: Duration = Duration::from_secs(30);

/// Time limit for writing the last counters.
const LAST_FLUSH: Duration = Duration::from_secs(1);

/// Share of the drain time-out for events under way; the rest is for giving partitions back and for the counters.
const DRAIN_SHARE: f64 = 0.8;
/// Number of messages that a partition requests from the server at a time.
const READ_BATCH: usize = 64;

/// Service that evaluates events against hooks.
#[derive(Debug)]
pub struct HookService;

impl Service for HookService {
    const NAME: &'static str = "hook-svc";
    const SECTION: &'static str = "hooks";
    const PARTS: &'static [&'static str] = &["hooks", "partitions", "projection", "workers"];
    const ASKS_MODELS: bool = true;
    const READS_EDGES: bool = true;
    type Config = HooksConfig;

    fn check(config: &HooksConfig) -> Vec<String> {
        config.faults()
    }

    fn check_models(config: &HooksConfig, llm: &LlmConfig) -> Vec<String> {
        config.faults_beside(llm)
    }

    fn check_files(config: &HooksConfig, common: &Common, _llm: &LlmConfig) -> Vec<Fault> {
        let mut faults = file_faults(&common.files.identities, shared::process::identities::faults);
        faults.extend(file_faults(&common.files.personas, identities::preset_faults));
        faults.extend(bindings::faults(&config.bindings));

        let named = [
            ("hooks.dir", &config.dir, check_dir(&config.dir)),
            ("hooks.bun", &config.bun, check_bun(&config.bun)),
            ("hooks.user", &config.user, user_fault(&config.user)),
        ];
        for (key, value, problem) in named {
            faults.extend(problem.map(|problem| KeyFault::new(key, problem).of_file(value)));
        }

        faults
    }

    fn warnings(config: &HooksConfig) -> Vec<String> {
        warning_of(config.dm_scope).into_iter().collect()
    }

    async fn serve(shell: Shell<HooksConfig>) -> anyhow::Result<()> {
        let config = &shell.config;
        let name = member_name(config, &shell.instance);

        // The directory may have been removed since the configuration was checked.
        if let Some(problem) = check_dir(&config.dir) {
            bail!("hooks.dir: `{}` {problem}", config.dir);
        }

        let (file, presets) = identities::load(&shell.common.files.identities, &shell.common.files.personas)?;
        let people = People::read(file, &shell.bus)
            .await
            .context("read the owner's chat pages")?;
        let identities = people.all();

        let (rules, followed_rules) = watch::channel(Arc::new(Rules {
            identities: identities.clone(),
            presets,
            dm_scope: config.dm_scope,
            is_chat_local: config.local_chat,
            deliveries: config.deliveries.clone(),
        }));

        if let Some(warning) = warning_of(config.dm_scope) {
            tracing::warn!("hooks.{warning}");
        }

        let bindings = Bindings::load(&config.bindings)?;

        let model = projection_path(config, &name);
        snapshot::bootstrap(&shell.bus, &model).await;
        let projection = Projection::open(&model).context("read model")?;
        projection
            .identify(identities, shell.clock.now())
            .await
            .context("identities in the read model")?;

        let pool_config = pool_config(config, projection.path(), host(&shell, &projection)?);
        let lab = Lab::new(pool_config.clone(), Arc::clone(&shell.clock));
        let pool = Pools::start(pool_config, Arc::clone(&shell.clock))
            .await
            .context("workers")?;
        tell_sandbox(&shell.health, &pool);
        let registry = Registry::new(&shell.bus, pool.clone(), &config.time_zone);
        let hooks_api = hooks_api(&shell, &registry, &lab, &projection);
        let apis = serve(&shell.bus, [events_api::spec(&projection, &shell.bus), hooks_api]).await?;

        let mut background = JoinSet::new();
        let (joined, may_join) = watch::channel(false);
        let admission = hooks(&shell, &registry, &mut background).admission(&shell, &projection, &pool, joined);
        background.spawn(admission);
        background.spawn(flush(registry.clone()));
        tend(&shell, &projection, (rules, people), &mut background);
        background.spawn(bindings.clone().follow());

        let (timed, clock) = (registry.clone(), Arc::clone(&shell.clock));
        background.spawn(async move { timed.keep_schedules(clock).await });
        let breakers = breakers(&shell, &registry, &pool, &mut background);
        background.spawn(list_hooks(registry.listed(), breakers.clone(), projection.clone()));
        let feeding = Shutdown::default();
        let tap = Tap::default();
        let feed = feed::run_tapped(shell.bus.clone(), projection.clone(), tap.clone(), feeding.clone());
        let mut feed = tokio::spawn(feed);

        let owner = owner(
            &shell,
            &registry,
            (breakers, bindings),
            followed_rules,
            &pool,
            &projection,
        );

        let lost = LostDispatches::new(Arc::clone(&owner));
        background.spawn(lost.keep(may_join.clone(), shell.shutdown.clone()));
        let group = Group {
            name: "hook",
            stream: EVENTS,
            instance: name,
            may_join,
            settled: partition::Settled::ByOwner,
            tap: Some(tap),
            batch: READ_BATCH,
            clock: Arc::clone(&shell.clock),
        };

        let handler = move |owned| Arc::clone(&owner).own(owned);
        let ended = tokio::select! {
            () = partition::run(shell.bus.clone(), group, shell.shutdown.clone(), handler) => Ok(()),
            fed = &mut feed => fed.context("read model's feed")?.context("read model's feed"),
        };

        // The tasks that hand over events end before the workers do.
        background.shutdown().await;
        pool.stop().await;

        if tokio::time::timeout(LAST_FLUSH, registry.flush()).await.is_err() {
            tracing::warn!("failed to write the last counters of hooks");
        }

        for api in apis {
            api.stop().await;
        }

        lab.stop().await;
        feeding.trigger();
        projection.close().await;

        if config.data_dir.is_empty()
            && let Some(folder) = projection.path().parent()
            && let Err(error) = std::fs::remove_dir_all(folder)
        {
            tracing::debug!(folder = %folder.display(), %error, "failed to remove a temporary read model");
        }

        ended
    }
}

/// Returns the reason why `dir` cannot be the hooks directory; an empty path is valid. With a missing directory, its
/// hooks would otherwise count as deleted.
fn check_dir(dir: &str) -> Option<String> {
    let path = Path::new(dir);
    if dir.is_empty() {
        return None;
    }
    if !path.is_dir() {
        return Some("is not a directory; expected one, or an empty value for the registry alone".to_owned());
    }

    let listed = std::fs::read_dir(path);
    listed.err().map(|error| format!("cannot be read: {error}"))
}

/// Returns the reason why `bun` cannot be the configured Bun; an empty path is valid and means a search.
fn check_bun(bun: &str) -> Option<String> {
    let is_there = bun.is_empty() || Path::new(bun).is_file();
    (!is_there).then(|| "is not a file; expected the program Bun, or an empty value to search for it".to_owned())
}

/// Returns a warning for a setting with which all persons share the owner's session.
fn warning_of(scope: DmScope) -> Option<String> {
    match scope {
        DmScope::Main => Some(
            "dm_scope: \"main\": all people who write a direct message share the owner's session, and read in the answers \
             what others have written; \"auto\" keeps strangers apart"
                .to_owned(),
        ),
        DmScope::Auto | DmScope::PerPeer | DmScope::PerChannelPeer | DmScope::PerAccountChannelPeer => None,
    }
}

/// State that shows whether this replica's hooks are loaded.
struct Hooks {
    /// Position from which on the registry holds the directory, `None` before the first sync; no receiver without a
    /// directory.
    synced: Option<watch::Receiver<Option<Reached>>>,
    /// Position up to which the workers hold the registry; `None` before the first load.
    loaded: watch::Receiver<Option<Reached>>,
}

/// Starts the tasks that keep the read model's persons and vectors up to date, its log short and a copy of it stored,
/// and `rules` equal to their files.
fn tend(
    shell: &Shell<HooksConfig>,
    projection: &Projection,
    (rules, people): (watch::Sender<Arc<Rules>>, People),
    background: &mut JoinSet<()>,
) {
    let (config, clock, health) = (shell.config.clone(), Arc::clone(&shell.clock), shell.health.clone());
    background.spawn(embed::run(config, projection.clone(), clock, health));
    background.spawn(model_log::watch(projection.clone()));
    background.spawn(snapshot::keep(
        shell.bus.clone(),
        projection.clone(),
        Arc::clone(&shell.clock),
    ));

    let files = identities::Files {
        identities: shell.common.files.identities.clone(),
        personas: shell.common.files.personas.clone(),
    };
    let (bus, clock, stop) = (shell.bus.clone(), Arc::clone(&shell.clock), shell.shutdown.clone());
    background.spawn(identities::follow(
        files,
        people,
        bus,
        rules,
        projection.clone(),
        clock,
        stop,
    ));
}

/// Starts the hooks' breakers, which also count errors that hooks throw outside of their evaluations.
fn breakers(shell: &Shell<HooksConfig>, registry: &Registry, pool: &Pools, background: &mut JoinSet<()>) -> Breakers {
    let breakers = Breakers::new(&shell.bus, Arc::clone(&shell.clock), BreakerPolicy::default());
    let following = breakers.clone();
    background.spawn(async move { following.follow().await });
    let (strays, instance) = (pool.strays(), shell.instance.clone());
    background.spawn(strays::count(strays, registry.clone(), breakers.clone(), instance));
    breakers
}

/// Keeps the read model's table of hooks equal to the registry; a recreated file gets it within [`LIST_AGAIN`].
async fn list_hooks(mut listed: watch::Receiver<Listed>, breakers: Breakers, projection: Projection) {
    let mut circuits = breakers.changes();
    loop {
        circuits.mark_unchanged();
        let circuit = |id: &str| breakers.of(id).map(|breaker| breaker.circuit).unwrap_or_default();
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

/// Starts the tasks that keep hooks up to date.
fn hooks(shell: &Shell<HooksConfig>, registry: &Registry, background: &mut JoinSet<()>) -> Hooks {
    let (loaded_sender, loaded) = watch::channel(None);
    let (era_sender, era) = watch::channel(0);
    let (synced_sender, synced) = watch::channel(None);
    let synced = (!shell.config.dir.is_empty()).then_some(synced);
    let (following, after) = (registry.clone(), synced.clone());
    background.spawn(async move { following.follow(loaded_sender, era_sender, after).await });

    if !shell.config.agent_dir.is_empty() {
        let files = AgentFiles::new(&shell.bus, PathBuf::from(&shell.config.agent_dir));
        background.spawn(async move { files.follow().await });
    }

    // Without a directory the hooks come from the registry alone.
    if synced.is_none() {
        return Hooks { synced, loaded };
    }

    let (path, root) = (PathBuf::from(&shell.config.dir), shell.config.root.clone());
    let directory = Directory::new(path, root, &shell.bus, Arc::clone(&shell.clock));
    background.spawn(async move { directory.follow(synced_sender, era).await });

    Hooks { synced, loaded }
}

impl Hooks {
    fn are_loaded(&self) -> bool {
        let loaded = *self.loaded.borrow();
        match &self.synced {
            None => loaded.is_some(),
            Some(synced) => matches!((*synced.borrow(), loaded), (Some(from), Some(to)) if to.holds(from)),
        }
    }

    /// Decides repeatedly whether this replica takes part, and reports it to `joined` and the health page.
    fn admission(
        self,
        shell: &Shell<HooksConfig>,
        projection: &Projection,
        pool: &Pools,
        joined: watch::Sender<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (projection, pool) = (projection.clone(), pool.clone());
        let (clock, health) = (Arc::clone(&shell.clock), shell.health.clone());
        async move {
            loop {
                let condition = Condition {
                    lag: projection.lag(clock.now()),
                    hooks_loaded: self.are_loaded(),
                    workers: pool.ready(),
                };
                let takes_part = takes_part(*joined.borrow(), condition);
                joined.send_if_modified(|before| std::mem::replace(before, takes_part) != takes_part);
                tell(&health, condition, takes_part);
                pause(ADMISSION).await;
            }
        }
    }
}

fn tell_sandbox(health: &Health, pool: &Pools) {
    let detail = match (pool.lacks(), pool.as_own()) {
        ([], None) => "hooks are confined".to_owned(),
        ([], Some(why)) => {
            tracing::warn!(why, "hooks run as root: no other user is available");
            format!("hooks are confined, but run as root; running as user nobody failed: {why}")
        }
        (lacks, _) => return health.degrade("sandbox", &lacks.join("; ")),
    };
    health.set("sandbox", true, detail);
}

fn tell(health: &Health, condition: Condition, takes_part: bool) {
    let lag = condition
        .lag
        .map_or_else(|| "not known yet".to_owned(), |lag| format!("{} ms", lag.as_millis()));
    metrics::gauge!("nexus_hook_projection_lag_seconds").set(condition.lag.unwrap_or_default().as_secs_f64());
    health.set("projection", condition.lag.is_some(), format!("behind by: {lag}"));
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

async fn flush(registry: Registry) {
    loop {
        pause(FLUSH).await;
        registry.flush().await;
    }
}

fn owner(
    shell: &Shell<HooksConfig>,
    registry: &Registry,
    (breakers, bindings): (Breakers, Bindings),
    rules: watch::Receiver<Arc<Rules>>,
    pool: &Pools,
    projection: &Projection,
) -> Arc<Owner> {
    let bus: Bus = shell.bus.clone();
    // The offset clock is only for hooks: leases and breakers are shared with other replicas.
    let clock = OffsetClock::over(Arc::clone(&shell.clock), shell.config.clock_offset_ms);
    let performer = Performer {
        warned: Mutex::default(),
        answers: Answers::new(&bus),
        bus,
        registry: registry.clone(),
        rules,
        meters: Meters::new(),
    };

    let evaluator = Evaluator {
        performer,
        pool: pool.clone(),
        breakers,
        bindings,
        passes: Mutex::default(),
        beyond_records: AtomicU64::new(0),
        projection: projection.clone(),
        clock,
        instance: shell.instance.clone(),
    };

    // The rest of the drain time is for giving partitions back and for the counters.
    let drain = Duration::from_millis(shell.common.telemetry.drain_timeout_ms).mul_f64(DRAIN_SHARE);
    let (in_flight, per_conversation) = (shell.config.in_flight, shell.config.in_flight_per_conversation);

    Arc::new(Owner::new(evaluator, in_flight, per_conversation, drain))
}

/// Starts the request services of this replica.
async fn serve(bus: &Bus, specs: [ServiceSpec; 2]) -> anyhow::Result<Vec<ServiceHandle>> {
    let mut handles = Vec::new();
    for spec in specs {
        handles.push(bus.serve(spec).await.map_err(anyhow::Error::msg)?);
    }
    Ok(handles)
}

/// Creates the host that answers the calls of scripts.
fn host(shell: &Shell<HooksConfig>, projection: &Projection) -> anyhow::Result<Arc<dyn Host>> {
    let clock = || Arc::clone(&shell.clock);
    let limits = Limits {
        hook_usd: shell.config.llm_daily_usd_per_hook,
        all_usd: shell.config.llm_daily_usd,
    };

    let model = llm::model(&shell.llm, clock(), shell.shutdown.clone());
    if let Err(why) = &model {
        tracing::info!(why, "no model configured for hooks");
    }

    let fetch = FetchHost::new(&shell.config.grants, Arc::new(Desk::new(projection.clone())))?;
    Ok(Arc::new(LlmHost::new(
        model,
        Budget::new(&shell.bus, limits, llm::price(&shell.llm), clock()),
        Arc::new(fetch),
    )))
}

fn hooks_api(shell: &Shell<HooksConfig>, registry: &Registry, lab: &Lab, projection: &Projection) -> ServiceSpec {
    hook_api::spec(HookApi {
        keeper: Keeper::new(&shell.bus, projection, Arc::clone(&shell.clock)),
        registry: registry.clone(),
        lab: lab.clone(),
        bus: shell.bus.clone(),
        projection: projection.clone(),
        clock: Arc::clone(&shell.clock),
    })
}

fn member_name(config: &HooksConfig, instance: &str) -> String {
    if config.members_name.is_empty() {
        instance.to_owned()
    } else {
        config.members_name.clone()
    }
}

/// Returns the path of the read model's file: each replica has a folder of its own, since the file belongs to one
/// process.
fn projection_path(config: &HooksConfig, name: &str) -> PathBuf {
    let folder = if config.data_dir.is_empty() {
        std::env::temp_dir().join("nexus-hook-svc")
    } else {
        PathBuf::from(&config.data_dir)
    };
    folder
        .join(shared::wire::subject::token(name))
        .join("read-model.sqlite")
}
