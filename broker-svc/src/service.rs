//! Wiring: claims → sessions → ledger → replies, with the sweeper and the quarantine beside.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use shared::bus::{ConsumeError, LetterWitness};
use shared::llm::{self, LlmConfig};
use shared::metric::Metric;
use shared::model::identity::Identities;
use shared::process::config::{ConfigFault, file_faults};
use shared::process::identities::KnownPeople;
use shared::process::{CommonConfig, Health, Service, ServiceShell, identities};
use tokio::task::JoinHandle;

use crate::admin;
use crate::agent::personas::Personas;
use crate::approval;
use crate::approval::timer_handler::TimerHandler;
use crate::approval::{auditor, restored_streams};
use crate::broker::{BrokerContext, newer_ledgers};
use crate::child::walls::ProcessWalls;
use crate::config::BrokerConfig;
use crate::hooks::callback;
use crate::hooks::rules::HookRules;
use crate::metric_table::METRICS;
use crate::queue::{claims, feed, quarantine, sweeper};

/// The broker as a process.
#[derive(Debug, Clone, Copy)]
pub struct BrokerService;

impl Service for BrokerService {
    const NAME: &'static str = "broker-svc";
    const SECTION: &'static str = "broker";
    const PARTS: &'static [&'static str] = &["claims", "walls"];
    const ASKS_MODELS: bool = true;
    const METRICS: &'static [&'static [Metric]] = &[METRICS];
    type Config = BrokerConfig;

    fn check(config: &BrokerConfig) -> Vec<String> {
        config.find_faults()
    }

    fn find_warnings(config: &BrokerConfig) -> Vec<String> {
        config.find_warnings()
    }

    fn check_files(_config: &BrokerConfig, common: &CommonConfig, llm: &LlmConfig) -> Vec<ConfigFault> {
        let files = &common.files;
        let mut known = None;
        let mut faults = file_faults(&files.personas, |text| {
            let (personas, faults) = Personas::check(text, llm);
            known = personas;
            faults
        });

        for fault in file_faults(&files.hooks, |text| HookRules::check(text, known.as_ref())) {
            // The hooks of personas are declared in the personas' own file.
            let is_of_persona = known.as_ref().is_some_and(|known| is_of_persona(&fault.key, known));
            let source = if is_of_persona {
                files.personas.clone()
            } else {
                fault.source
            };
            faults.push(ConfigFault { source, ..fault });
        }

        faults.extend(file_faults(&files.identities, identities::faults));
        faults
    }

    fn warn_files(common: &CommonConfig) -> Vec<String> {
        // An unreadable file is a fault, and reported as one.
        let personas = read(&common.files.personas).ok();
        let personas = personas.and_then(|text| Personas::parse(&text).ok());
        personas.map(|personas| personas.empty_levels()).unwrap_or_default()
    }

    async fn serve(shell: ServiceShell<BrokerConfig>) -> anyhow::Result<()> {
        // Personas first: a fault in them must stop the service before it takes any work.
        let personas = load_personas(&shell.common.files.personas)?;
        let empty = personas.empty_levels();
        if !empty.is_empty() {
            shell.health.set_degraded("tools", &empty.join("; "));
        }

        // Before the first program is started, because the restrictions hold only for later ones.
        match build_walls(&shell).raise() {
            Ok(told) => shell.health.set("walls", true, told),
            Err(lacks) => shell.health.set_degraded("walls", lacks),
        }

        let path = shell.common.files.identities.clone();
        let people = KnownPeople::read(read_identities(&path)?, &shell.bus).await;
        let people = people.context("failed to read the owner's chat pages")?;
        let hooks = load_hooks(&shell.common.files.hooks, &personas)?;
        let drain = Duration::from_millis(shell.common.telemetry.drain_timeout_ms);

        let ServiceShell {
            config,
            llm,
            bus,
            instance,
            clock,
            shutdown,
            health,
            ..
        } = shell;

        // The model's client is opened only if a persona needs it, so other installations need no key.
        let model = personas
            .ask_models()
            .then(|| llm::open(llm, Arc::clone(&clock), shutdown.clone()))
            .transpose()?;
        let mut broker = BrokerContext::new(bus, clock, instance, config, personas, shutdown, drain).with_hooks(hooks);
        if let Some(model) = model {
            broker = broker.with_model(model);
        }

        let broker = Arc::new(broker.with_identities(people.all_identities()));
        // These tasks end with the shutdown signal; they are awaited after the claims.
        let beside = start_beside(&broker, path, people, &health);

        // Announced before the first claim is taken: an agent of a first turn may ask the gate at once.
        let _admin = admin::serve(&broker)
            .await
            .map_err(anyhow::Error::msg)
            .context("the service `session` is not announced")?;
        let _approvals = approval::service::serve(&broker)
            .await
            .map_err(anyhow::Error::msg)
            .context("the service `approval` is not announced")?;

        let _gate = callback::serve(&broker)
            .await
            .map_err(anyhow::Error::msg)
            .context("the service `turn` is not announced")?;
        let tell = |asked: Result<(), &ConsumeError>| match asked {
            Ok(()) => health.set("claims", true, "pulling"),
            Err(error) => health.set("claims", false, error.to_string()),
        };

        // Returns after the shutdown signal, when the running turns have ended or were handed back.
        claims::serve(&broker, tell).await;

        for task in beside {
            task.await.context("a background task failed")?;
        }

        Ok(())
    }
}

/// Starts the tasks that run beside the claims until the shutdown signal.
fn start_beside(
    broker: &Arc<BrokerContext>,
    path: String,
    people: KnownPeople,
    health: &Health,
) -> [JoinHandle<()>; 12] {
    let timers = TimerHandler {
        bus: broker.bus.clone(),
        clock: Arc::clone(&broker.clock),
        store: Arc::clone(broker.desk()),
    };
    [
        tokio::spawn(feed::serve(
            Arc::clone(&broker.feed),
            broker.bus.clone(),
            broker.parts.clone(),
            broker.shutdown.clone(),
        )),
        tokio::spawn({
            let broker = Arc::clone(broker);
            async move { broker.share_parts().await }
        }),
        tokio::spawn(
            broker
                .streams
                .ledger_witness()
                .run_witness(Arc::clone(&broker.clock), broker.shutdown.clone()),
        ),
        tokio::spawn(LetterWitness::new(&broker.bus).keep(Arc::clone(&broker.clock), broker.shutdown.clone())),
        tokio::spawn(sweeper::serve(Arc::clone(broker))),
        tokio::spawn(quarantine::watch_marks(Arc::clone(broker))),
        tokio::spawn(timers.serve(broker.shutdown.clone())),
        tokio::spawn(follow_identities(path, people, Arc::clone(broker))),
        tokio::spawn(Arc::clone(broker.hooks()).follow_breakers(broker.shutdown.clone())),
        tokio::spawn(auditor::serve(Arc::clone(broker))),
        tokio::spawn(restored_streams::serve(Arc::clone(broker))),
        tokio::spawn(newer_ledgers::serve(Arc::clone(broker), health.clone())),
    ]
}

/// Returns the files and ports that the broker's programs cannot reach.
fn build_walls(shell: &ServiceShell<BrokerConfig>) -> ProcessWalls {
    let nats = &shell.common.nats;
    let mut hidden = shell.config.hidden.clone();
    hidden.push(nats.credentials.clone());
    ProcessWalls::new(
        shell.run_dir.as_deref(),
        &hidden,
        &shell.common.secret_files,
        &nats.servers,
    )
}

/// Reads `identities.yaml`.
fn read_identities(path: &str) -> anyhow::Result<Identities> {
    identities::load(path).map_err(|faults| anyhow::anyhow!("files.identities: {}", faults.join("; ")))
}

/// Keeps the identities of approvals current for as long as the process runs.
async fn follow_identities(path: String, known: KnownPeople, broker: Arc<BrokerContext>) {
    identities::follow_identities(&path, known, &broker.bus, &broker.shutdown, |read| {
        broker.desk().set_identities(read);
    })
    .await;
}

/// Returns a file's text; an empty path is an empty file.
fn read(path: &str) -> std::io::Result<String> {
    if path.is_empty() {
        return Ok(String::new());
    }
    std::fs::read_to_string(path)
}

fn load_personas(path: &str) -> anyhow::Result<Personas> {
    let text = read(path).with_context(|| format!("files.personas: failed to read {path}"))?;
    Personas::parse(&text).with_context(|| format!("files.personas: {path}"))
}

/// Returns the hooks within turns: those of `hooks.yaml` and those of the personas.
fn load_hooks(path: &str, personas: &Personas) -> anyhow::Result<HookRules> {
    let text = read(path).with_context(|| format!("files.hooks: failed to read {path}"))?;
    let rules = HookRules::parse(&text, personas).with_context(|| format!("files.hooks: {path}"))?;
    rules.warn_of_commands();
    Ok(rules)
}

/// Returns whether `key` belongs to a hook in a persona's own list.
fn is_of_persona(key: &str, personas: &Personas) -> bool {
    let lists = personas.personas.keys().map(|name| format!("personas.{name}.hooks"));
    lists
        .filter_map(|list| key.strip_prefix(&list))
        .any(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
}
