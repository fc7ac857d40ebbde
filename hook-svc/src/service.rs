//! Wiring of the service: files and registry → workers; streams → read model; partitions → owner.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use shared::attachments::AttachmentStore;
use shared::breaker::BreakerPolicy;
use shared::bus::partition::{self, PartitionGroup};
use shared::bus::{Bus, ServiceHandle, ServiceSpec, SlotLeases, StreamTap};
use shared::clock::{OffsetClock, pause};
use shared::llm::LlmConfig;
use shared::metric::{self, Metric};
use shared::model::identity::Identities;
use shared::model::permission::PermissionPresets;
use shared::model::session::DmScope;
use shared::platform::group_prompts::GroupPrompts;
use shared::process::config::{ConfigFault, KeyFault, file_faults};
use shared::process::identities::KnownPeople;
use shared::process::lifecycle::ShutdownSignal;
use shared::process::{CommonConfig, Health, Service, ServiceShell};
use shared::wire::topology::streams::EVENTS;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::HooksConfig;
use crate::dry_run::{DryRunner, pool_config};
use crate::evaluation::GROUP;
use crate::evaluation::evaluator::EventEvaluator;
use crate::evaluation::fire::FireExecutor;
use crate::evaluation::lost_dispatches::LostDispatches;
use crate::evaluation::partition_consumer::PartitionConsumer;
use crate::health::async_errors;
use crate::health::breakers::HookBreakers;
use crate::health::metrics::{ServiceMeters, count_sandbox_level};
use crate::health::participation::start_hooks;
use crate::host::answers::AnswerStore;
use crate::host::fetch::FetchHost;
use crate::host::files::FileHost;
use crate::host::llm;
use crate::host::llm::{LlmHost, SpendBudget, SpendLimits};
use crate::host::search_host::SearchHost;
use crate::metric_table::METRICS;
use crate::operator;
use crate::read_model::access::ModelAccess;
use crate::read_model::backlog;
use crate::read_model::identities;
use crate::read_model::own_copy::{self, CopyKeeper};
use crate::read_model::peer_copies::PeerCopies;
use crate::read_model::stand_in;
use crate::registry::hook_api::HookApi;
use crate::registry::hook_commands::HookCommands;
use crate::registry::{HookRegistry, hook_api};
use crate::routing::bindings::LiveBindings;
use crate::routing::{RoutingRules, bindings};
use crate::runner::{PoolConfig, SandboxLevel, ScriptHost, WorkerPools, user_fault};

/// Interval at which hooks' counters are written.
const FLUSH: Duration = Duration::from_secs(5);

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
    const METRICS: &'static [&'static [Metric]] = &[METRICS, metric::PROJECTION];
    type Config = HooksConfig;

    fn check(config: &HooksConfig) -> Vec<String> {
        config.find_faults()
    }

    fn check_models(config: &HooksConfig, llm: &LlmConfig) -> Vec<String> {
        config.faults_beside(llm)
    }

    fn check_files(config: &HooksConfig, common: &CommonConfig, _llm: &LlmConfig) -> Vec<ConfigFault> {
        let mut faults = file_faults(&common.files.identities, shared::process::identities::faults);
        faults.extend(file_faults(&common.files.personas, identities::preset_faults));
        let prompt_faults = |text: &str| GroupPrompts::read(text).err().map(|error| error.0).unwrap_or_default();
        faults.extend(file_faults(&common.files.channels, prompt_faults));
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

    fn find_warnings(config: &HooksConfig) -> Vec<String> {
        warning_of(config.dm_scope).into_iter().collect()
    }

    async fn serve(shell: ServiceShell<HooksConfig>) -> anyhow::Result<()> {
        let config = &shell.config;
        let name = member_name(config, &shell.instance);

        // The directory may have been removed since the configuration was checked.
        if let Some(problem) = check_dir(&config.dir) {
            bail!("hooks.dir: `{}` {problem}", config.dir);
        }

        let (file, presets) = identities::load(&shell.common.files.identities, &shell.common.files.personas)?;
        let people = KnownPeople::read(file, &shell.bus).await;
        let people = people.context("failed to read the owner's chat pages")?;
        let rules = routing_rules(&shell, &people.all_identities(), presets)?;
        let (rules, followed_rules) = watch::channel(Arc::new(rules));

        log_warning(config.dm_scope);
        let bindings = LiveBindings::load(&config.bindings)?;

        let mut background = JoinSet::new();
        let (model, slots) = model_access(&shell, &name, &mut background);

        let pool_config = PoolConfig {
            model: Arc::new(model.clone()),
            ..pool_config(config, model.path(), new_host(&shell, &model)?)
        };
        let lab = DryRunner::new(pool_config.clone(), Arc::clone(&shell.clock));
        let pool = WorkerPools::start(pool_config, Arc::clone(&shell.clock))
            .await
            .context("workers")?;
        tell_sandbox(&shell.health, &pool);
        let registry = HookRegistry::new(&shell.bus, pool.clone(), &config.time_zone);
        let api = serve(&shell.bus, hooks_api(&shell, &registry, &lab, &model)).await?;
        let operators = operator::serve(&shell.bus, &shell.clock, &shell.ids).await;
        let _operators = operators.map_err(anyhow::Error::msg)?;

        let (joined, may_join) = watch::channel(false);
        let admission = start_hooks(&shell, &registry, &mut background).run_admission(&shell, &model, &pool, joined);
        background.spawn(admission);
        follow_rules(&shell, (rules, people), &mut background);
        background.spawn(bindings.clone().follow_file());

        tend_registry(&shell, &registry, &mut background);
        let breakers = start_breakers(&shell, &registry, &pool, &mut background);

        // The group's partitions are fed by the read model's own reader of `EVENTS` while this replica has one.
        let tap = StreamTap::default();
        let keeping = ShutdownSignal::default();
        let keeper = CopyKeeper {
            bus: shell.bus.clone(),
            clock: Arc::clone(&shell.clock),
            health: shell.health.clone(),
            config: config.clone(),
            name: name.clone(),
            access: model.clone(),
            rules: followed_rules.clone(),
            registry: registry.clone(),
            breakers: breakers.clone(),
            tap: tap.clone(),
        };
        let mut keeper = tokio::spawn(Arc::new(keeper).run(slots, keeping.clone()));

        let owner = new_owner(&shell, &registry, (breakers, bindings), followed_rules, &pool, &model);
        let lost = LostDispatches::new(Arc::clone(&owner));
        background.spawn(lost.watch_stream(may_join.clone(), shell.shutdown.clone()));
        let group = partition_group(&shell, name, may_join, tap);
        let handler = move |owned| Arc::clone(&owner).run_partition(owned);
        let ended = tokio::select! {
            () = partition::run(shell.bus.clone(), group, shell.shutdown.clone(), handler) => Ok(()),
            kept = &mut keeper => kept.context("keeper of the read model's copy")?,
        };

        // The tasks that hand over events end before the workers do.
        background.shutdown().await;
        pool.stop().await;

        flush_last(&registry).await;
        api.stop().await;
        lab.stop().await;

        keeping.trigger();
        if !keeper.is_finished() {
            // An error of the last moment changes nothing: the streams are the record.
            let _ = keeper.await;
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

fn log_warning(scope: DmScope) {
    if let Some(warning) = warning_of(scope) {
        tracing::warn!("hooks.{warning}");
    }
}

/// Returns the rules for the sessions of dispatches, as the configuration and the files give them.
fn routing_rules(
    shell: &ServiceShell<HooksConfig>,
    identities: &Identities,
    presets: PermissionPresets,
) -> anyhow::Result<RoutingRules> {
    let config = &shell.config;
    Ok(RoutingRules {
        identities: identities.clone(),
        presets,
        dm_scope: config.dm_scope,
        is_chat_local: config.local_chat,
        deliveries: config.deliveries.clone(),
        group_prompts: read_group_prompts(&shell.common.files.channels)?,
    })
}

/// Reads the groups' prompts in `channels.yaml`; an empty path is a file without accounts.
fn read_group_prompts(path: &str) -> anyhow::Result<GroupPrompts> {
    if path.is_empty() {
        return Ok(GroupPrompts::default());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("files.channels: cannot read `{path}`"))?;
    GroupPrompts::read(&text).with_context(|| format!("files.channels: `{path}`"))
}

/// Returns the access to the read model of the replica `name`, whose tasks it starts, and the slots for copies.
fn model_access(
    shell: &ServiceShell<HooksConfig>,
    name: &str,
    background: &mut JoinSet<()>,
) -> (ModelAccess, SlotLeases) {
    let (bus, clock) = (&shell.bus, || Arc::clone(&shell.clock));
    let copies = shell.config.read_model.copies;
    let slots = SlotLeases::watch_slots(bus, own_copy::GROUP, name.to_owned(), copies, clock());
    let peers = PeerCopies::new(bus, name, slots.holders(), clock());
    let (model, asker) = ModelAccess::new(own_copy::path_of(&shell.config, name), peers);

    background.spawn(asker.run());
    background.spawn(backlog::export(bus.clone(), clock(), model.follow_own()));
    let following = model.clone();
    background.spawn(async move { following.follow_peers().await });
    background.spawn(stand_in::run(bus.clone(), model.clone(), clock()));
    (model, slots)
}

/// Starts the tasks that keep `rules` equal to their files.
fn follow_rules(
    shell: &ServiceShell<HooksConfig>,
    (rules, people): (watch::Sender<Arc<RoutingRules>>, KnownPeople),
    background: &mut JoinSet<()>,
) {
    let files = identities::IdentityFiles {
        identities: shell.common.files.identities.clone(),
        personas: shell.common.files.personas.clone(),
    };
    let (bus, stop) = (shell.bus.clone(), shell.shutdown.clone());
    background.spawn(identities::follow_files(files, people, bus, rules, stop));
}

/// Starts the tasks that write the hooks' schedules and counters.
fn tend_registry(shell: &ServiceShell<HooksConfig>, registry: &HookRegistry, background: &mut JoinSet<()>) {
    let (timed, clock) = (registry.clone(), Arc::clone(&shell.clock));
    background.spawn(async move { timed.keep_schedules(clock).await });
    background.spawn(flush(registry.clone()));
}

/// Starts the hooks' breakers, which also count errors that hooks throw outside of their evaluations.
fn start_breakers(
    shell: &ServiceShell<HooksConfig>,
    registry: &HookRegistry,
    pool: &WorkerPools,
    background: &mut JoinSet<()>,
) -> HookBreakers {
    let breakers = HookBreakers::new(&shell.bus, Arc::clone(&shell.clock), BreakerPolicy::default());
    let following = breakers.clone();
    background.spawn(async move { following.follow_bucket().await });
    let (strays, instance) = (pool.subscribe_strays(), shell.instance.clone());
    background.spawn(async_errors::count(
        strays,
        registry.clone(),
        breakers.clone(),
        instance,
    ));
    breakers
}

/// Reports how far hooks are confined, in the log, `/readyz` and a metric.
fn tell_sandbox(health: &Health, pool: &WorkerPools) {
    let level = pool.sandbox_level();
    count_sandbox_level(level);
    tracing::info!(level = level.name(), "sandbox tried");

    let confined = match level {
        SandboxLevel::Full => "hooks are confined",
        SandboxLevel::Covered => {
            "hooks are confined; system calls are denied that this kernel's Landlock does not know"
        }
        SandboxLevel::Degraded => return health.set_degraded("sandbox", &pool.missing_confinement().join("; ")),
    };
    let detail = match pool.as_own() {
        None if pool.has_groups() => format!("{confined}; they run in control groups of their authors"),
        None => confined.to_owned(),
        Some(why) => {
            tracing::warn!(error = why, "hooks run as root: no other user is available");
            format!("{confined}; they run as root, since running as user nobody failed: {why}")
        }
    };
    health.set("sandbox", true, format!("{}: {detail}", level.name()));
}

/// Returns the replica's membership in the group that shares the partitions of `EVENTS`.
fn partition_group(
    shell: &ServiceShell<HooksConfig>,
    name: String,
    may_join: watch::Receiver<bool>,
    tap: StreamTap,
) -> PartitionGroup {
    PartitionGroup {
        name: GROUP,
        stream: EVENTS,
        instance: name,
        may_join,
        settled: partition::SettledOutcome::ByOwner,
        tap: Some(tap),
        batch: READ_BATCH,
        clock: Arc::clone(&shell.clock),
    }
}

/// Writes the counters of hooks a last time, within [`LAST_FLUSH`].
async fn flush_last(registry: &HookRegistry) {
    if tokio::time::timeout(LAST_FLUSH, registry.flush()).await.is_err() {
        tracing::warn!("failed to write the last counters of hooks");
    }
}

async fn flush(registry: HookRegistry) {
    loop {
        pause(FLUSH).await;
        registry.flush().await;
    }
}

fn new_owner(
    shell: &ServiceShell<HooksConfig>,
    registry: &HookRegistry,
    (breakers, bindings): (HookBreakers, LiveBindings),
    rules: watch::Receiver<Arc<RoutingRules>>,
    pool: &WorkerPools,
    model: &ModelAccess,
) -> Arc<PartitionConsumer> {
    let bus: Bus = shell.bus.clone();
    // The offset clock is only for hooks: leases and breakers are shared with other replicas.
    let clock = OffsetClock::over(Arc::clone(&shell.clock), shell.config.clock_offset_ms);
    let performer = FireExecutor {
        warned: Mutex::default(),
        answers: AnswerStore::new(&bus),
        bus,
        registry: registry.clone(),
        rules,
        meters: ServiceMeters::new(),
    };

    let evaluator = EventEvaluator {
        performer,
        pool: pool.clone(),
        breakers,
        bindings,
        passes: Mutex::default(),
        beyond_records: AtomicU64::new(0),
        model: model.clone(),
        most_waiting: shell.config.in_flight_per_conversation / 2,
        clock,
        instance: shell.instance.clone(),
    };

    // The rest of the drain time is for giving partitions back and for the counters.
    let drain = Duration::from_millis(shell.common.telemetry.drain_timeout_ms).mul_f64(DRAIN_SHARE);
    let (in_flight, per_conversation) = (shell.config.in_flight, shell.config.in_flight_per_conversation);

    Arc::new(PartitionConsumer::new(evaluator, in_flight, per_conversation, drain))
}

/// Starts the request service of this replica.
async fn serve(bus: &Bus, spec: ServiceSpec) -> anyhow::Result<ServiceHandle> {
    bus.serve(spec).await.map_err(anyhow::Error::msg)
}

/// Creates the host that answers the calls of scripts.
fn new_host(shell: &ServiceShell<HooksConfig>, model: &ModelAccess) -> anyhow::Result<Arc<dyn ScriptHost>> {
    let clock = || Arc::clone(&shell.clock);
    let limits = SpendLimits {
        hook_usd: shell.config.llm_daily_usd_per_hook,
        all_usd: shell.config.llm_daily_usd,
    };

    let provider = llm::open_model(&shell.llm, clock(), shell.shutdown.clone());
    if let Err(why) = &provider {
        tracing::info!(error = why, "no model configured for hooks");
    }

    let fetch = FetchHost::new(&shell.config.grants, Arc::new(SearchHost::new(model.clone())))?;
    Ok(Arc::new(LlmHost::new(
        provider,
        SpendBudget::new(&shell.bus, limits, llm::model_price(&shell.llm), clock()),
        Arc::new(FileHost::new(
            AttachmentStore::new(&shell.bus, clock()),
            Arc::new(fetch),
        )),
    )))
}

fn hooks_api(
    shell: &ServiceShell<HooksConfig>,
    registry: &HookRegistry,
    lab: &DryRunner,
    model: &ModelAccess,
) -> ServiceSpec {
    hook_api::service_spec(HookApi {
        keeper: HookCommands::new(&shell.bus, model, Arc::clone(&shell.clock)),
        registry: registry.clone(),
        lab: lab.clone(),
        bus: shell.bus.clone(),
        model: model.clone(),
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
