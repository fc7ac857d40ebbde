//! Wiring: claims → sessions → ledger → replies, with the sweeper and the quarantine beside.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use shared::bus::{ConsumeError, LetterWitness};
use shared::llm::{self, LlmConfig};
use shared::model::identity::Identities;
use shared::process::config::{Fault, file_faults};
use shared::process::identities::People;
use shared::process::{Common, Service, Shell, identities};

use crate::approval::timer_handler::TimerHandler;
use crate::approval::{self, again, auditor};
use crate::broker::Broker;
use crate::config::BrokerConfig;
use crate::hook_point::rules::HookRules;
use crate::hook_point::{breakers, callback};
use crate::personas::Personas;
use crate::walls::Walls;
use crate::{admin, claims, feed, quarantine, sweeper};

/// The broker as a process.
#[derive(Debug, Clone, Copy)]
pub struct BrokerService;

impl Service for BrokerService {
    const NAME: &'static str = "broker-svc";
    const SECTION: &'static str = "broker";
    const PARTS: &'static [&'static str] = &["claims", "walls"];
    const ASKS_MODELS: bool = true;
    type Config = BrokerConfig;

    fn check(config: &BrokerConfig) -> Vec<String> {
        config.faults()
    }

    fn warnings(config: &BrokerConfig) -> Vec<String> {
        config.warnings()
    }

    fn check_files(_config: &BrokerConfig, common: &Common, llm: &LlmConfig) -> Vec<Fault> {
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
            faults.push(Fault { source, ..fault });
        }

        faults.extend(file_faults(&files.identities, identities::faults));
        faults
    }

    fn warn_files(common: &Common) -> Vec<String> {
        // An unreadable file is a fault, and reported as one.
        let personas = read(&common.files.personas).ok();
        let personas = personas.and_then(|text| Personas::parse(&text).ok());
        personas.map(|personas| personas.empty_levels()).unwrap_or_default()
    }

    async fn serve(shell: Shell<BrokerConfig>) -> anyhow::Result<()> {
        let personas = personas(&shell.common.files.personas)?;
        let empty = personas.empty_levels();
        if !empty.is_empty() {
            shell.health.degrade("tools", &empty.join("; "));
        }

        match walls(&shell).raise() {
            Ok(told) => shell.health.set("walls", true, told),
            Err(lacks) => shell.health.degrade("walls", lacks),
        }

        let path = shell.common.files.identities.clone();
        let people = People::read(read_identities(&path)?, &shell.bus).await;
        let people = people.context("read the owner's chat pages")?;
        let hooks = hooks(&shell.common.files.hooks, &personas)?;
        let drain = Duration::from_millis(shell.common.telemetry.drain_timeout_ms);

        let Shell {
            config,
            llm,
            bus,
            instance,
            clock,
            shutdown,
            health,
            ..
        } = shell;

        let model = personas
            .ask_models()
            .then(|| llm::open(llm, Arc::clone(&clock), shutdown.clone()))
            .transpose()?;
        let mut broker = Broker::new(bus, clock, instance, config, personas, shutdown, drain).with_hooks(hooks);
        if let Some(model) = model {
            broker = broker.with_model(model);
        }

        let broker = Arc::new(broker.knowing(people.all()));
        let timers = TimerHandler {
            bus: broker.bus.clone(),
            clock: Arc::clone(&broker.clock),
            store: Arc::clone(broker.desk()),
        };
        let beside = [
            tokio::spawn(feed::serve(
                Arc::clone(&broker.feed),
                broker.bus.clone(),
                broker.shutdown.clone(),
            )),
            tokio::spawn(
                broker
                    .ledger_witness()
                    .keep(Arc::clone(&broker.clock), broker.shutdown.clone()),
            ),
            tokio::spawn(LetterWitness::new(&broker.bus).keep(Arc::clone(&broker.clock), broker.shutdown.clone())),
            tokio::spawn(sweeper::serve(Arc::clone(&broker))),
            tokio::spawn(quarantine::watch(Arc::clone(&broker))),
            tokio::spawn(timers.serve(broker.shutdown.clone())),
            tokio::spawn(follow(path, people, Arc::clone(&broker))),
            tokio::spawn(breakers::serve(Arc::clone(&broker))),
            tokio::spawn(auditor::serve(Arc::clone(&broker))),
            tokio::spawn(again::serve(Arc::clone(&broker))),
        ];

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

        claims::serve(&broker, tell).await;

        for task in beside {
            task.await.context("a task beside the claims ended badly")?;
        }

        Ok(())
    }
}

/// Returns the files and ports that the broker's programs cannot reach.
fn walls(shell: &Shell<BrokerConfig>) -> Walls {
    let nats = &shell.common.nats;
    let mut hidden = shell.config.hidden.clone();
    hidden.push(nats.credentials.clone());
    Walls::of(
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
async fn follow(path: String, known: People, broker: Arc<Broker>) {
    identities::follow(&path, known, &broker.bus, &broker.shutdown, |read| {
        broker.desk().know(read);
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

fn personas(path: &str) -> anyhow::Result<Personas> {
    let text = read(path).with_context(|| format!("files.personas: {path} cannot be read"))?;
    Personas::parse(&text).with_context(|| format!("files.personas: {path}"))
}

/// Returns the hooks within turns: those of `hooks.yaml` and those of the personas.
fn hooks(path: &str, personas: &Personas) -> anyhow::Result<HookRules> {
    let text = read(path).with_context(|| format!("files.hooks: {path} cannot be read"))?;
    let rules = HookRules::parse(&text, personas).with_context(|| format!("files.hooks: {path}"))?;
    rules.warn();
    Ok(rules)
}

/// Returns whether `key` belongs to a hook in a persona's own list.
fn is_of_persona(key: &str, personas: &Personas) -> bool {
    let lists = personas.personas.keys().map(|name| format!("personas.{name}.hooks"));
    lists
        .filter_map(|list| key.strip_prefix(&list))
        .any(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
}
