//! The connection of the parts in the order of an event: listener, gateway, intake, outbox, publisher, stream.

mod accounts;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use shared::bus::Bus;
use shared::clock::{SharedClock, SharedIds, pause};
use shared::llm::LlmConfig;
use shared::metric::Metric;
use shared::platform::accounts::{PlatformAccounts, read_platforms};
use shared::platform::discord::DiscordAccount;
use shared::platform::slack::SlackAccount;
use shared::platform::slack_tokens::{KeeperContext, TokenKeeper, open_keepers};
use shared::platform::telegram::TelegramAccount;
use shared::process::config::{CommonConfig, ConfigFault, file_faults};
use shared::process::{Health, Service, ServiceShell, ShutdownSignal};
use tokio::task::JoinHandle;

use crate::config::{AcceptMode, AdapterConfig};
use crate::gateway::GatewayState;
use crate::intake::EventIntake;
use crate::listener::connections::ConnectionLimits;
use crate::listener::{self, ListenerLimits};
use crate::metric_table::METRICS;
use crate::outbox::EventSpool;
use crate::publisher::SpoolPublisher;
use crate::source::webchat::owner_api;
use accounts::{serve_operators, start_accounts};

/// Interval in which the spool is checked for `/readyz` and the metrics.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Share of `adapter.spool_max_bytes` from which a warning is logged, in percent.
const WARN_AT_PERCENT: u64 = 80;

/// The adapter service, which accepts outside events.
#[derive(Debug)]
pub struct AdapterService;

impl Service for AdapterService {
    const NAME: &'static str = "adapter-svc";
    const SECTION: &'static str = "adapter";
    const PARTS: &'static [&'static str] = &["gateway"];
    const METRICS: &'static [&'static [Metric]] = &[METRICS];
    type Config = AdapterConfig;

    fn check(config: &AdapterConfig) -> Vec<String> {
        config.find_faults()
    }

    fn check_beside(config: &AdapterConfig, edges: &BTreeMap<String, String>) -> Vec<String> {
        config.faults_beside(edges)
    }

    fn find_warnings(config: &AdapterConfig) -> Vec<String> {
        config.find_warnings()
    }

    fn check_files(config: &AdapterConfig, common: &CommonConfig, _llm: &LlmConfig) -> Vec<ConfigFault> {
        let faults = |text: &str| match read_platforms(text) {
            Ok(accounts) => config.notice_fault(&accounts.configured()).into_iter().collect(),
            Err(error) => error.0,
        };
        let mut faults = file_faults(&common.files.channels, faults);
        for fault in faults.iter_mut().filter(|fault| fault.source.is_empty()) {
            "files.channels".clone_into(&mut fault.source);
        }
        faults
    }

    /// Returns whether it may start without the bus: an edge host without its network accepts events into the spool.
    fn begins_alone(config: &AdapterConfig) -> bool {
        match config.accept {
            AcceptMode::Spool => true,
            AcceptMode::Stream => false,
        }
    }

    async fn serve(shell: ServiceShell<AdapterConfig>) -> anyhow::Result<()> {
        let drain = Duration::from_millis(shell.common.telemetry.drain_timeout_ms);
        let accounts = read_accounts(&shell.common.files.channels)?;
        let surroundings = ServiceContext {
            bus: shell.bus.clone(),
            clock: shell.clock.clone(),
            ids: shell.ids.clone(),
            health: shell.health.clone(),
            shutdown: shell.shutdown.clone(),
            drain,
            instance: shell.instance.clone(),
            telegram: accounts.telegram.accounts,
            discord: accounts.discord.accounts,
            slack: accounts.slack.accounts,
        };

        let running = RunningAdapter::start(&shell.config, surroundings).await?;
        shell.announce_address("gateway", running.address);

        running.wait_finished().await
    }
}

/// The parts of the process that the service uses.
#[derive(Debug, Clone)]
pub struct ServiceContext {
    /// Bus for publishing and requests.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Source of ids for events that have no other identity.
    pub ids: SharedIds,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Request to stop the service.
    pub shutdown: ShutdownSignal,
    /// Maximum time for stopping.
    pub drain: Duration,
    /// Name of this replica, in leases.
    pub instance: String,
    /// Accounts on Telegram.
    pub telegram: BTreeMap<String, TelegramAccount>,
    /// Accounts on Discord.
    pub discord: BTreeMap<String, DiscordAccount>,
    /// Accounts on Slack.
    pub slack: BTreeMap<String, SlackAccount>,
}

/// The running service with its tasks.
#[derive(Debug)]
pub struct RunningAdapter {
    /// Address at which HTTP is served.
    pub address: SocketAddr,
    drain: Duration,
    serving: JoinHandle<()>,
    /// Request to the spool's reader to stop once the spool is empty. It is triggered after the last request has
    /// ended.
    ending: ShutdownSignal,
    /// Tasks that publish accepted events, in the order in which they end.
    publishing: Vec<JoinHandle<()>>,
}

impl RunningAdapter {
    /// Opens the spool and the listener, and starts to serve.
    ///
    /// # Errors
    /// Returns an error if the spool's directory is in use, the address is taken, or the configuration was not
    /// checked.
    pub async fn start(config: &AdapterConfig, around: ServiceContext) -> anyhow::Result<Self> {
        let (publisher, work) =
            SpoolPublisher::start(around.bus.clone(), around.clock.clone(), config.publish_in_flight);
        let ending = ShutdownSignal::default();
        let mut publishing = Vec::new();

        let publisher_of_sources = publisher.clone();
        let intake = match config.accept {
            AcceptMode::Spool => {
                let outbox = EventSpool::open(&config.data_dir, config.spool_max_bytes)
                    .await
                    .with_context(|| {
                        format!(
                            "adapter.data_dir: cannot open the spool in {}",
                            config.data_dir.display()
                        )
                    })?;

                tracing::info!(entries = outbox.len(), bytes = outbox.bytes(), "spool opened");
                publishing.push(tokio::spawn(publisher.drain_spool(outbox.clone(), ending.clone())));
                tokio::spawn(watch_spool(
                    outbox.clone(),
                    config.spool_max_bytes,
                    around.health.clone(),
                    around.shutdown.clone(),
                ));

                EventIntake::to_spool(around.bus.clone(), outbox)
            }
            AcceptMode::Stream => EventIntake::to_stream(around.bus.clone(), publisher),
        };

        let owners = owner_api::service_spec(&around.bus, &around.clock, &around.ids);
        let owners = serve_operators(owners, around.bus.clone(), around.shutdown.clone());
        publishing.push(tokio::spawn(owners));

        publishing.extend(start_keepers(&around).await?);
        let (doors, receiving) = start_accounts(config, &around, publisher_of_sources)?;
        publishing.extend(receiving);
        // Last, because it ends only after the spool's reader has dropped its handle.
        publishing.push(work);

        let shutdown = around.shutdown.clone();
        let gateway = GatewayState::new(
            config,
            intake,
            doors,
            around.bus,
            around.clock,
            around.ids,
            shutdown.clone(),
        )
        .map_err(|fault| anyhow::anyhow!("adapter.{fault}"))?;

        for warning in config.find_warnings() {
            tracing::warn!("adapter.{warning}");
        }

        // Bound last, so that no request arrives before the spool is open.
        let listener = listener::bind_listener(config.listen)
            .with_context(|| format!("adapter.listen: cannot listen on {}", config.listen))?;
        let address = listener.local_addr()?;
        around.health.set("gateway", true, format!("listens at {address}"));

        let bounds = listener_limits(config, around.drain)?;
        let serving = tokio::spawn(listener::serve(listener, gateway.router(), bounds, shutdown));
        Ok(Self {
            address,
            drain: around.drain,
            serving,
            ending,
            publishing,
        })
    }

    /// Waits until the service was asked to stop and has stopped: all requests have ended, and the events in progress
    /// are published. Events that remain in the spool are published at the next start.
    ///
    /// # Errors
    /// Returns an error if a task of the service panicked.
    pub async fn wait_finished(self) -> anyhow::Result<()> {
        self.serving.await.context("the listener died")?;
        // No request can add an event any more.
        self.ending.trigger();
        let aborts: Vec<_> = self.publishing.iter().map(JoinHandle::abort_handle).collect();

        let ended = async {
            for task in self.publishing {
                task.await.context("the publisher died")?;
            }
            anyhow::Ok(())
        };

        match tokio::time::timeout(self.drain / 2, ended).await {
            Ok(ended) => ended,
            Err(_) => {
                tracing::warn!("shutdown before all events were published; the spool keeps them");
                aborts.iter().for_each(tokio::task::AbortHandle::abort);
                Ok(())
            }
        }
    }
}

/// Reads the accounts in the file `path`; none if there is no file.
fn read_accounts(path: &str) -> anyhow::Result<PlatformAccounts> {
    let text = if path.is_empty() {
        String::new()
    } else {
        std::fs::read_to_string(path).with_context(|| format!("files.channels: cannot read `{path}`"))?
    };
    read_platforms(&text).with_context(|| format!("files.channels: `{path}`"))
}

/// Starts to keep the rotated tokens of apps of Slack valid; those that other replicas have renewed are in use then.
async fn start_keepers(around: &ServiceContext) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let context = KeeperContext {
        bus: around.bus.clone(),
        clock: around.clock.clone(),
        health: around.health.clone(),
        instance: around.instance.clone(),
    };
    let keepers = open_keepers(&around.slack, &context).await;
    let keepers = keepers.context("slack: cannot make an HTTP client")?;
    let keep = |keeper: TokenKeeper| tokio::spawn(keeper.keep(around.shutdown.clone()));
    Ok(keepers.into_iter().map(keep).collect())
}

/// Returns the bounds of the listener. `drain` is the time within which the service ends.
fn listener_limits(config: &AdapterConfig, drain: Duration) -> anyhow::Result<ListenerLimits> {
    Ok(ListenerLimits {
        limits: ConnectionLimits {
            total: config.max_connections,
            per_address: config.max_connections_per_address,
            head: Duration::from_millis(config.header_timeout_ms),
            answer: Duration::from_millis(config.request_timeout_ms),
        },
        trusted: config
            .trusted_networks()
            .map_err(|fault| anyhow::anyhow!("adapter.{fault}"))?,
        // The other half is for publishing, after the last request has ended.
        drain: drain / 2,
    })
}

/// Reports the state of the spool to `/readyz` and the metrics.
async fn watch_spool(outbox: EventSpool, max_bytes: u64, health: Health, shutdown: ShutdownSignal) {
    let mut warned = false;
    while !shutdown.is_requested() {
        let (entries, bytes, works) = (outbox.len(), outbox.bytes(), outbox.is_working());
        metrics::gauge!("nexus_adapter_spool_entries").set(entries as f64);
        metrics::gauge!("nexus_adapter_spool_bytes").set(bytes as f64);

        let filling = bytes.saturating_mul(100) / max_bytes;
        let detail = format!("{entries} entries, {bytes} of {max_bytes} bytes");
        // A full or failing spool accepts nothing, so the service is not ready.
        health.set(
            "spool",
            works && filling < 100,
            if works { detail } else { "the disk fails".to_owned() },
        );

        // Logged once for each time that the spool fills up.
        if filling >= WARN_AT_PERCENT && !warned {
            tracing::warn!(
                entries,
                bytes,
                max_bytes,
                "spool is filling up; its oldest entries wait for the stream"
            );
        }

        warned = filling >= WARN_AT_PERCENT;

        tokio::select! {
            () = pause(LOOK_EVERY) => {}
            () = shutdown.requested() => return,
        }
    }
}
