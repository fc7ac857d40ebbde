//! Running a service, in this order: configuration (all faults at once), telemetry, health pages, connection,
//! topology, service. The first SIGTERM or SIGINT asks everything to stop; the service has its drain timeout; traces
//! are exported last. `/livez` works from the health pages on; `/readyz` shows what is missing.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use super::announce::Announcement;
use super::config::{Arguments, Common, Document, Edges, Environment, Fault, Loaded, edge_faults};
use super::connection::{agree_on_topology, connect, watch};
use super::health::{self, Health};
use super::lifecycle::{Shutdown, StopSignals};
use super::secrecy;
use super::shell::{Service, Shell};
use super::status::Teller;
use super::telemetry::Telemetry;
use crate::bus::Bus;
use crate::clock::{IdSource, SystemClock, SystemIds, TEST_CLOCK, is_rehearsed, pause};
use crate::llm::LlmConfig;
use crate::wire::seal::Trust;

/// Prefix of the lines in which `--check` warns of a valid setting that is weaker than it should be.
pub const WARNING: &str = "warning: ";

/// Outcome of a process, with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process was asked to stop and finished its work: 0.
    Clean,
    /// An operation failed for good: 1.
    Failed,
    /// The command line or the configuration is wrong: 2.
    Misconfigured,
    /// The process was asked to stop and did not finish within the drain timeout, or was asked twice: 3.
    DrainTimeout,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Clean => Self::SUCCESS,
            Exit::Failed => Self::from(1),
            Exit::Misconfigured => Self::from(2),
            Exit::DrainTimeout => Self::from(3),
        }
    }
}

/// A service's complete configuration, read and checked.
#[derive(Debug)]
pub struct Prepared<C> {
    /// Value of the service's own section.
    pub config: C,
    /// Values of the shared sections.
    pub common: Common,
    /// Section `[llm]`, if the service uses models.
    pub llm: LlmConfig,
    /// Keys with which events are sealed and checked.
    pub trust: Arc<Trust>,
    /// Instance name of this replica.
    pub instance: String,
    /// Directory in which running processes announce themselves.
    pub run_dir: Option<PathBuf>,
    /// Log filter that overrides the configured level.
    pub log: Option<String>,
}

/// Runs service `S` as this process; the whole of `main`.
pub fn run<S: Service>() -> ExitCode {
    let closed = secrecy::close();
    let environment = Environment::of_process();

    let arguments = match Arguments::of_process() {
        Ok(arguments) => arguments,
        Err(error) => return refuse::<S>(&[error.to_string()]),
    };
    if arguments.help || arguments.version {
        println!(
            "{} {}\n\n  --config PATH   read this file instead of ./nexus.toml\n  --check         check the configuration and end\n  --show          print this service's section and end",
            S::NAME,
            env!("CARGO_PKG_VERSION")
        );
        return Exit::Clean.into();
    }

    let document = Document::read(&arguments, &environment);
    if arguments.show {
        // A file that cannot be read leaves nothing to show.
        if !document.faults().is_empty() {
            return refuse::<S>(&document.faults().iter().map(Fault::to_string).collect::<Vec<_>>());
        }
        let section = toml::Table::from_iter([(S::SECTION.to_owned(), inspect::<S>(&document).0)]);
        print!("{}", toml::to_string(&section).unwrap_or_default());

        return Exit::Clean.into();
    }

    let prepared = match prepare::<S>(&document, &environment) {
        Ok(prepared) => prepared,
        Err(faults) => return refuse::<S>(&faults.iter().map(Fault::to_string).collect::<Vec<_>>()),
    };
    if arguments.check {
        for warning in S::warnings(&prepared.config) {
            println!("{WARNING}{}.{warning}", S::SECTION);
        }

        for warning in S::warn_files(&prepared.common) {
            println!("{WARNING}{warning}");
        }
        println!("{}: the configuration is sound", document.source());

        return Exit::Clean.into();
    }

    raise_handles(S::NAME);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = prepared.common.runtime.threads(processors);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.worker_threads(threads).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse::<S>(&[format!("cannot start a runtime: {error}")]),
    };

    log_panics();

    if let Err(error) = closed {
        eprintln!(
            "{}: the environment is open to others of the same system user: {error}",
            S::NAME
        );
    }

    let exit = runtime.block_on(async {
        let mut signals = match StopSignals::listen() {
            Ok(signals) => signals,
            Err(error) => {
                eprintln!("{}: cannot listen for signals: {error}", S::NAME);
                return Exit::Failed;
            }
        };

        let stop = async move || {
            let signal = signals.next().await;
            tracing::info!(signal, "stopping");
        };

        run_until::<S>(prepared, stop).await
    });

    // A thread that still blocks after the drain must not keep the process alive.
    runtime.shutdown_background();
    exit.into()
}

/// Raises the soft limit of open files to the hard one: no program of ours calls `select` with handles beyond 1,024.
fn raise_handles(service: &str) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        eprintln!("{service}: the limit of open files stays {:?}: {error}", limit.current);
    }
}

/// Checks the section of `S` alone, for the command line. Returns its values with secrets as references, and its
/// faults.
#[must_use]
pub fn inspect<S: Service>(document: &Document) -> (toml::Value, Vec<Fault>) {
    let loaded = section::<S>(document, &models::<S>(document).value);
    (loaded.shown(), loaded.faults)
}

/// Reads section `[llm]`, or its defaults if `S` uses no models.
fn models<S: Service>(document: &Document) -> Loaded<LlmConfig> {
    if S::ASKS_MODELS {
        return document.section("llm", LlmConfig::faults);
    }
    Loaded {
        value: LlmConfig::default(),
        faults: Vec::new(),
    }
}

/// Reads the section of `S`, and checks it by itself, with `llm`, and with the channels of the edges.
fn section<S: Service>(document: &Document, llm: &LlmConfig) -> Loaded<S::Config> {
    let channel = |edge: &toml::Value| Some(edge.get("channel")?.as_str()?.to_owned());
    let edges = document.value("edges");
    let edges = edges
        .iter()
        .filter_map(|(name, edge)| Some((name.clone(), channel(edge)?)));
    let channels = edges.collect();

    document.section(S::SECTION, |config| {
        let mut faults = S::check(config);
        faults.extend(S::check_beside(config, &channels));
        if S::ASKS_MODELS {
            faults.extend(S::check_models(config, llm));
        }
        faults
    })
}

/// Returns everything that `S` needs before it starts, or every fault there is.
pub fn prepare<S: Service>(document: &Document, environment: &Environment) -> Result<Prepared<S::Config>, Vec<Fault>> {
    let (common, common_faults) = Common::load(document);
    let llm = models::<S>(document);
    let own = section::<S>(document, &llm.value);

    let edges = if S::READS_EDGES {
        document.section("edges", edge_faults)
    } else {
        Loaded {
            value: Edges::new(),
            faults: Vec::new(),
        }
    };

    let files = S::check_files(&own.value, &common, &llm.value);
    let mut faults = [
        document.faults().to_vec(),
        common_faults,
        own.faults,
        llm.faults,
        edges.faults,
        files,
    ]
    .concat();

    let instance = environment
        .instance()
        .map_or_else(|| new_instance(environment.host()), str::to_owned);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if instance.len() > 64 || !instance.bytes().all(plain) {
        let problem = "expected at most 64 letters, digits, `-` and `_`".to_owned();
        faults.push(Fault {
            source: "NEXUS_INSTANCE".to_owned(),
            key: String::new(),
            problem,
        });
    }

    if !faults.is_empty() {
        return Err(faults);
    }

    let (run_dir, log) = (environment.run_dir(), environment.log().map(str::to_owned));
    let trust = Arc::new(common.trust.trust(&edges.value));

    Ok(Prepared {
        config: own.value,
        trust,
        common,
        llm: llm.value,
        instance,
        run_dir,
        log,
    })
}

/// Builds an instance name from the host, the process id and a few random characters, unique without coordination.
fn new_instance(host: Option<&str>) -> String {
    let short: String = host
        .unwrap_or("local")
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(24)
        .collect();
    let ulid = SystemIds.ulid().to_string().to_ascii_lowercase();
    format!("{short}-{}-{}", std::process::id(), &ulid[ulid.len() - 6..])
}

/// Logs panics as well: a panic ends only its task.
fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "panicked");
        before(panic);
    }));
}

fn refuse<S: Service>(faults: &[String]) -> ExitCode {
    for fault in faults {
        eprintln!("{}: {fault}", S::NAME);
    }
    Exit::Misconfigured.into()
}

/// Runs `S` until `stop` returns for the first time and the work is finished, or for the second time.
pub(super) async fn run_until<S: Service>(prepared: Prepared<S::Config>, mut stop: impl AsyncFnMut()) -> Exit {
    let Prepared {
        config,
        common,
        llm,
        trust,
        instance,
        run_dir,
        log,
    } = prepared;

    let telemetry = match Telemetry::start(&common.telemetry, S::NAME, &instance, log.as_deref()) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("{}: {:#}", S::NAME, anyhow::Error::from(error));
            return Exit::Failed;
        }
    };

    let announcement = Announcement::new(run_dir.as_deref(), S::NAME, &instance);
    let drain = Duration::from_millis(common.telemetry.drain_timeout_ms);
    let (shutdown, ended) = (Shutdown::default(), Shutdown::default());

    let start = Start {
        config,
        common,
        llm,
        trust,
        instance,
        run_dir,
        announcement,
        shutdown: shutdown.clone(),
        ended,
    };

    let (announcement, ended) = (start.announcement.clone(), start.ended.clone());
    let mut announcing = JoinSet::new();
    let mut work = Box::pin(work::<S>(start, telemetry.metrics(), &mut announcing));
    let exit = tokio::select! {
        done = &mut work => outcome(done),
        () = stop() => {
            shutdown.trigger();
            tokio::select! {
                done = &mut work => outcome(done),
                () = pause(drain) => overdue("drain time-out exceeded"),
                () = stop() => overdue("asked to stop twice"),
            }
        }
    };

    drop(work);
    announcement.withdraw();
    tracing::info!(?exit, "stopped");
    ended.trigger();
    // However the work ended, the announcement on the bus is withdrawn.
    while announcing.join_next().await.is_some() {}
    telemetry.stop().await;

    exit
}

fn overdue(why: &'static str) -> Exit {
    tracing::error!(why, "work in progress abandoned; it is redelivered");
    Exit::DrainTimeout
}

fn outcome(done: anyhow::Result<()>) -> Exit {
    match done {
        Ok(()) => Exit::Clean,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "service failed");
            Exit::Failed
        }
    }
}

/// Arguments of a process's work.
struct Start<C> {
    config: C,
    common: Common,
    llm: LlmConfig,
    trust: Arc<Trust>,
    instance: String,
    run_dir: Option<PathBuf>,
    announcement: Announcement,
    shutdown: Shutdown,
    ended: Shutdown,
}

/// Runs the service to its end. The task that announces it on the bus goes to `announcing`, because it outlives this work.
async fn work<S: Service>(
    start: Start<S::Config>,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    announcing: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let Start {
        config,
        common,
        llm,
        trust,
        instance,
        run_dir,
        announcement,
        shutdown,
        ended,
    } = start;

    let health = Health::default();
    health.set("nats", false, "connecting");
    health.set("topology", false, "not looked at");

    for part in S::PARTS {
        health.set(part, false, "not begun");
    }

    let listen = common.telemetry.listen;
    let teller = Teller {
        service: S::NAME,
        instance: instance.clone(),
        health: health.clone(),
        metrics: metrics.clone(),
    };

    let address = health::start(listen, health.clone(), metrics, ended.clone())
        .await
        .with_context(|| format!("telemetry.listen: cannot listen on {listen}"))?;
    tracing::info!(service = S::NAME, instance, %address, version = env!("CARGO_PKG_VERSION"), "starting");

    if is_rehearsed() {
        tracing::warn!(variable = TEST_CLOCK, "clocks of this process are set by a test");
    }

    announcement.add("http", address);
    let name = format!("{}.{instance}", S::NAME);
    let alone = S::begins_alone(&config);
    let bus = if alone {
        Some(Bus::connect_later(&common.nats, &name).await?)
    } else {
        connect(&common.nats, &name, &health, &shutdown).await?
    };

    let Some(bus) = bus.map(|bus| bus.trusting(trust)) else {
        return Ok(());
    };
    announcing.spawn(teller.clone().announce(bus.clone(), ended.clone()));
    tokio::spawn(teller.serve(bus.clone(), ended.clone()));
    tokio::spawn(watch(
        bus.clone(),
        common.nats.clone(),
        health.clone(),
        shutdown.clone(),
        ended,
    ));

    let (nats, agreed_bus, agreed_health, agreed_stop) =
        (common.nats.clone(), bus.clone(), health.clone(), shutdown.clone());
    let mut agreement =
        Box::pin(async move { agree_on_topology(&agreed_bus, &nats, &agreed_health, &agreed_stop).await });
    if !alone && !agreement.as_mut().await? {
        return Ok(());
    }

    let shell = Shell {
        config,
        common,
        llm,
        bus,
        instance,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        shutdown,
        health,
        run_dir,
        announcement,
    };

    // The service runs on the pool, not on the thread that waits for signals; a panic in it is an error here.
    let mut serving = JoinSet::new();
    serving.spawn(S::serve(shell));
    let ended = async { serving.join_next().await };
    let ended = if alone {
        beside(ended, agreement).await?
    } else {
        ended.await
    };

    match ended {
        Some(ended) => ended.context("service panicked")?,
        None => Ok(()),
    }
}

/// Runs `work` to its end with `agreement` beside it; if `agreement` fails, `work` is dropped.
async fn beside<T, E>(work: impl Future<Output = T>, agreement: impl Future<Output = Result<bool, E>>) -> Result<T, E> {
    let mut work = pin!(work);
    tokio::select! {
        ended = &mut work => Ok(ended),
        agreed = agreement => {
            agreed?;
            Ok(work.await)
        }
    }
}

#[cfg(test)]
mod tests;
