//! Running a service, in this order: configuration (all faults at once), telemetry, health pages, connection,
//! topology, service. The first SIGTERM or SIGINT asks everything to stop; the service has its drain timeout; traces
//! are exported last. `/livez` works from the health pages on; `/readyz` shows the parts that are not ready.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use super::announce::ServiceAnnouncement;
use super::config::{CommonConfig, ConfigDocument, ConfigEnvironment, ConfigFault, ServiceArguments};
use super::connection::{agree_on_topology, connect_service, watch_connection};
use super::hardening;
use super::health::{self, Health};
use super::lifecycle::{ShutdownSignal, StopSignals};
use super::memory;
use super::prepare::{PreparedService, inspect_section, prepare_service};
use super::shell::{Service, ServiceShell};
use super::status::StatusResponder;
use super::telemetry::Telemetry;
use crate::clock::{SystemClock, SystemIds, TEST_CLOCK, is_rehearsed, pause};
use crate::llm::LlmConfig;
use crate::metric;
use crate::wire::seal::TrustKeys;
#[cfg(all(feature = "testing", debug_assertions))]
use crate::wire::unknown;

/// Prefix of the lines in which `--check` warns of a valid setting that is weaker than it should be.
pub const WARNING: &str = "warning: ";

/// Outcome of a process, with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceExit {
    /// The process was asked to stop and finished its work: 0.
    Clean,
    /// An operation failed for good: 1.
    Failed,
    /// The command line or the configuration is wrong: 2.
    Misconfigured,
    /// The process was asked to stop and did not finish within the drain timeout, or was asked twice: 3.
    DrainTimeout,
}

impl From<ServiceExit> for ExitCode {
    fn from(exit: ServiceExit) -> Self {
        match exit {
            ServiceExit::Clean => Self::SUCCESS,
            ServiceExit::Failed => Self::from(1),
            ServiceExit::Misconfigured => Self::from(2),
            ServiceExit::DrainTimeout => Self::from(3),
        }
    }
}

/// Runs service `S` as this process; the whole of `main`.
pub fn run<S: Service>() -> ExitCode {
    let unsettled = settle_process();
    let environment = ConfigEnvironment::of_process();

    let arguments = match ServiceArguments::of_process() {
        Ok(arguments) => arguments,
        Err(error) => return refuse_start::<S>(&[error.to_string()]),
    };
    if arguments.help || arguments.version {
        println!(
            "{} {}\n\n  --config PATH   read this file instead of ./nexus.toml\n  --check         check the configuration and end\n  --show          print this service's section and end",
            S::NAME,
            env!("CARGO_PKG_VERSION")
        );
        return ServiceExit::Clean.into();
    }

    let document = ConfigDocument::read(&arguments, &environment);
    if arguments.show {
        // A file that cannot be read leaves nothing to show.
        if !document.faults().is_empty() {
            return refuse_start::<S>(&document.faults().iter().map(ConfigFault::to_string).collect::<Vec<_>>());
        }
        let section = toml::Table::from_iter([(S::SECTION.to_owned(), inspect_section::<S>(&document).0)]);
        print!("{}", toml::to_string(&section).unwrap_or_default());

        return ServiceExit::Clean.into();
    }

    let prepared = match prepare_service::<S>(&document, &environment) {
        Ok(prepared) => prepared,
        Err(faults) => return refuse_start::<S>(&faults.iter().map(ConfigFault::to_string).collect::<Vec<_>>()),
    };
    if arguments.check {
        for warning in S::find_warnings(&prepared.config) {
            println!("{WARNING}{}.{warning}", S::SECTION);
        }

        for warning in S::warn_files(&prepared.common) {
            println!("{WARNING}{warning}");
        }
        println!("{}: the configuration is sound", document.source());

        return ServiceExit::Clean.into();
    }

    #[cfg(all(feature = "testing", debug_assertions))]
    rehearse_later_release();

    raise_handles(S::NAME);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = prepared.common.runtime.thread_count(processors);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.worker_threads(threads).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse_start::<S>(&[format!("cannot start a runtime: {error}")]),
    };

    log_panics();

    for fault in unsettled {
        eprintln!("{}: {fault}", S::NAME);
    }

    let exit = runtime.block_on(async {
        let mut signals = match StopSignals::listen() {
            Ok(signals) => signals,
            Err(error) => {
                eprintln!("{}: cannot listen for signals: {error}", S::NAME);
                return ServiceExit::Failed;
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

/// Lets this process stand for a later release if a test wants it.
#[cfg(all(feature = "testing", debug_assertions))]
#[expect(clippy::disallowed_methods, reason = "tests set it; no configuration has it")]
fn rehearse_later_release() {
    if std::env::var_os(unknown::LATER_RELEASE).is_some_and(|value| !value.is_empty()) {
        unknown::rehearse_later_release();
    }
}

/// Sets what holds for the whole process, and returns what could not be set.
fn settle_process() -> Vec<String> {
    let closed = hardening::close();
    let closed = closed.map_err(|error| format!("the environment is open to others of the same system user: {error}"));

    let small = memory::use_small_pages();
    let small =
        small.map_err(|error| format!("memory is used in huge pages where the allocator asks for them: {error}"));

    [closed, small].into_iter().filter_map(Result::err).collect()
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

/// Logs panics as well: a panic ends only its task.
fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "panicked");
        before(panic);
    }));
}

fn refuse_start<S: Service>(faults: &[String]) -> ExitCode {
    for fault in faults {
        eprintln!("{}: {fault}", S::NAME);
    }
    ServiceExit::Misconfigured.into()
}

/// Runs `S` until `stop` returns for the first time and the work is finished, or for the second time.
pub(super) async fn run_until<S: Service>(
    prepared: PreparedService<S::Config>,
    mut stop: impl AsyncFnMut(),
) -> ServiceExit {
    let PreparedService {
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
            return ServiceExit::Failed;
        }
    };

    metric::register(&[metric::PROCESS, metric::BUS]);
    if S::ASKS_MODELS {
        metric::register(&[metric::MODELS]);
    }
    metric::register(S::METRICS);

    let announcement = ServiceAnnouncement::new(run_dir.as_deref(), S::NAME, &instance);
    let drain = Duration::from_millis(common.telemetry.drain_timeout_ms);
    // Two signals: `shutdown` asks the service to stop, `ended` stops the tasks that must outlive it.
    let (shutdown, ended) = (ShutdownSignal::default(), ShutdownSignal::default());

    let start = ServiceStart {
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
    // The work can be dropped at any point: all of it that was not stored is repeated at the next start.
    let mut announcing = JoinSet::new();
    let mut work = Box::pin(run_service::<S>(start, telemetry.metrics(), &mut announcing));
    let exit = tokio::select! {
        done = &mut work => exit_of(done),
        () = stop() => {
            shutdown.trigger();
            tokio::select! {
                done = &mut work => exit_of(done),
                () = pause(drain) => overdue_exit("drain time-out exceeded"),
                () = stop() => overdue_exit("asked to stop twice"),
            }
        }
    };

    drop(work);
    announcement.remove_file();
    tracing::info!(?exit, "stopped");
    ended.trigger();
    // However the work ended, the announcement on the bus is withdrawn.
    while announcing.join_next().await.is_some() {}
    telemetry.stop().await;

    exit
}

fn overdue_exit(why: &'static str) -> ServiceExit {
    tracing::error!(reason = why, "work in progress abandoned; it is redelivered");
    ServiceExit::DrainTimeout
}

fn exit_of(done: anyhow::Result<()>) -> ServiceExit {
    match done {
        Ok(()) => ServiceExit::Clean,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "service failed");
            ServiceExit::Failed
        }
    }
}

/// Arguments of a process's work.
struct ServiceStart<C> {
    config: C,
    common: CommonConfig,
    llm: LlmConfig,
    trust: Arc<TrustKeys>,
    instance: String,
    run_dir: Option<PathBuf>,
    announcement: ServiceAnnouncement,
    shutdown: ShutdownSignal,
    ended: ShutdownSignal,
}

/// Runs the service to its end. The task that announces it on the bus goes to `announcing`, because it outlives this work.
async fn run_service<S: Service>(
    start: ServiceStart<S::Config>,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    announcing: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let ServiceStart {
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

    let health = Health::unready(S::PARTS);
    let listen = common.telemetry.listen;
    let teller = StatusResponder::new(S::NAME, &instance, &health, &metrics);

    // Before the connection: an operator must see why a service does not become ready.
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
    let bus = connect_service(alone, &common.nats, &name, &health, &shutdown).await?;
    let Some(bus) = bus.map(|bus| bus.with_trust(trust)) else {
        return Ok(());
    };
    announcing.spawn(teller.clone().announce(bus.clone(), ended.clone()));
    tokio::spawn(teller.serve(bus.clone(), ended.clone()));

    let (nats, agreed_bus, agreed_health, agreed_stop) =
        (common.nats.clone(), bus.clone(), health.clone(), shutdown.clone());
    let watched = watch_connection(bus.clone(), nats.clone(), health.clone(), shutdown.clone(), ended);
    tokio::spawn(watched);
    let mut agreement =
        Box::pin(async move { agree_on_topology(&agreed_bus, &nats, &agreed_health, &agreed_stop).await });
    // The service must not start before its streams exist, unless it can work without the server.
    if !alone && !agreement.as_mut().await? {
        return Ok(());
    }

    let shell = ServiceShell {
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
        run_beside(ended, agreement).await?
    } else {
        ended.await
    };

    match ended {
        Some(ended) => ended.context("service panicked")?,
        None => Ok(()),
    }
}

/// Runs `work` to its end with `agreement` beside it; if `agreement` fails, `work` is dropped.
async fn run_beside<T, E>(
    work: impl Future<Output = T>,
    agreement: impl Future<Output = Result<bool, E>>,
) -> Result<T, E> {
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
