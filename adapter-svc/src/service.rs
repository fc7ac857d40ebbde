//! The connection of the parts in the order of an event: listener, gateway, intake, outbox, publisher, stream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use shared::bus::{Bus, ServiceSpec, TaskLease};
use shared::clock::{SharedClock, SharedIds, SystemClock, pause};
use shared::llm::LlmConfig;
use shared::metric::Metric;
use shared::platform::accounts::{PlatformAccounts, read_platforms};
use shared::platform::discord::{self, DiscordAccount};
use shared::platform::slack::{SlackAccount, SlackReceive};
use shared::platform::telegram::{ReceiveMode, TelegramAccount};
use shared::process::config::{CommonConfig, ConfigFault, file_faults};
use shared::process::{Health, Service, ServiceShell, ShutdownSignal};
use tokio::task::JoinHandle;

use crate::attachments::AttachmentFetcher;
use crate::attachments::keeper::{AttachmentKeeper, TASK};
use crate::config::{AcceptMode, AdapterConfig};
use crate::gateway::{GatewayState, PlatformDoors};
use crate::intake::EventIntake;
use crate::listener::connections::ConnectionLimits;
use crate::listener::{self, ListenerLimits};
use crate::metric_table::METRICS;
use crate::outbox::EventSpool;
use crate::pairing::PairingStore;
use crate::pairing::service::service_spec;
use crate::publisher::SpoolPublisher;
use crate::source::discord::account_context::AccountContext;
use crate::source::discord::address_gate::AddressGates;
use crate::source::discord::client as discord_client;
use crate::source::discord::gateway::DiscordSource;
use crate::source::media::open_media;
use crate::source::port::accounts::start_sources;
use crate::source::port::{SinkContext, Source};
use crate::source::slack::client as slack_client;
use crate::source::slack::endpoint::{EndpointContext, open_endpoints};
use crate::source::slack::socket::SlackSocketSource;
use crate::source::telegram::client::open_http;
use crate::source::telegram::poll::TelegramSource;
use crate::source::telegram::webhook::{DoorContext, TelegramDoors, TelegramWebhookSource, open_doors};
use crate::source::webchat::owner_api;

/// Interval in which the spool is checked for `/readyz` and the metrics.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Share of `adapter.spool_max_bytes` from which a warning is logged, in percent.
const WARN_AT_PERCENT: u64 = 80;
/// Wait before a service is registered again, after that failed.
const SERVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

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

    fn check_files(_config: &AdapterConfig, common: &CommonConfig, _llm: &LlmConfig) -> Vec<ConfigFault> {
        let faults = |text: &str| read_platforms(text).err().map(|error| error.0).unwrap_or_default();
        file_faults(&common.files.channels, faults)
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

        let bounds = ListenerLimits {
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
            drain: around.drain / 2,
        };

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

/// Starts the tasks of all accounts; returns them with the doors of those to which platforms post.
fn start_accounts(
    config: &AdapterConfig,
    around: &ServiceContext,
    publisher: SpoolPublisher,
) -> anyhow::Result<(PlatformDoors, Vec<JoinHandle<()>>)> {
    let pairings = PairingStore::new(around.bus.clone(), around.clock.clone(), around.ids.clone());
    let served = serve_operators(service_spec(&pairings), around.bus.clone(), around.shutdown.clone());
    let discord = discord_contexts(around)?;
    let media = open_media(&around.telegram, &around.slack, &discord)?;
    let attachments = AttachmentFetcher::new(&around.bus, around.clock.clone(), media, &config.attachments);

    let keeper = AttachmentKeeper {
        fetcher: attachments.clone(),
        intake: EventIntake::to_stream(around.bus.clone(), publisher.clone()),
        clock: around.clock.clone(),
        health: around.health.clone(),
        lease: TaskLease::new(&around.bus, TASK, around.instance.clone()),
    };
    let sink = SinkContext {
        bus: around.bus.clone(),
        pairings: pairings.clone(),
        attachments: attachments.clone(),
        intake: EventIntake::to_stream(around.bus.clone(), publisher),
        clock: around.clock.clone(),
        health: around.health.clone(),
        age_gate_ms: i64::try_from(config.age_gate_ms).unwrap_or(i64::MAX),
        run: around.ids.ulid(),
    };
    let mut tasks = start_polling(around, &discord, &sink)?;
    tasks.push(tokio::spawn(served));
    tasks.push(tokio::spawn(keeper.keep(around.shutdown.clone())));

    let (telegram, learned) = telegram_doors(around, &sink)?;
    tasks.extend(learned);
    let context = EndpointContext {
        pairings,
        attachments,
        health: around.health.clone(),
        ids: around.ids.clone(),
        shutdown: around.shutdown.clone(),
        age_gate_ms: i64::try_from(config.age_gate_ms).unwrap_or(i64::MAX),
    };
    let opened = open_endpoints(&around.slack, &context);
    let (slack, identified) = opened.context("slack: cannot make an HTTP client")?;
    tasks.extend(identified);
    Ok((PlatformDoors { slack, telegram }, tasks))
}

/// Returns the doors of the accounts to which Telegram posts, and the tasks that learn who their bots are.
fn telegram_doors(around: &ServiceContext, sink: &SinkContext) -> anyhow::Result<(TelegramDoors, Vec<JoinHandle<()>>)> {
    // A host to which nothing is posted needs no client.
    if !around
        .telegram
        .values()
        .any(|account| account.receive == ReceiveMode::Webhook)
    {
        return Ok((TelegramDoors::new(), Vec::new()));
    }
    let http = open_http().context("telegram: cannot make an HTTP client")?;
    let context = DoorContext {
        bus: around.bus.clone(),
        clock: around.clock.clone(),
        ids: around.ids.clone(),
        shutdown: around.shutdown.clone(),
        pairings: sink.pairings.clone(),
        attachments: sink.attachments.clone(),
        age_gate_ms: sink.age_gate_ms,
    };
    Ok(open_doors(&around.telegram, &http, &context))
}

/// Starts the sources of the accounts that are polled. Their events go to JetStream past the spool.
fn start_polling(
    around: &ServiceContext,
    discord: &BTreeMap<String, AccountContext>,
    sink: &SinkContext,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let mut sources = telegram_sources(around)?;
    sources.extend(discord_sources(discord));
    sources.extend(slack_sources(around)?);
    Ok(start_sources(sources, sink, &around.instance, &around.shutdown))
}

/// Serves the operator's requests of `spec` until `shutdown`.
async fn serve_operators(spec: ServiceSpec, bus: Bus, shutdown: ShutdownSignal) {
    let serving = loop {
        match bus.serve(spec.clone()).await {
            Ok(serving) => break serving,
            Err(error) => tracing::warn!(service = spec.name, %error, "failed to serve operators' requests; retrying"),
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = pause(SERVE_AGAIN_AFTER) => {}
        }
    };

    shutdown.requested().await;
    serving.stop().await;
}

/// Returns the sources of the accounts on Telegram that are polled, or to which it posts.
fn telegram_sources(around: &ServiceContext) -> anyhow::Result<Vec<Arc<dyn Source>>> {
    let receives = |account: &TelegramAccount| match account.receive {
        ReceiveMode::Poll | ReceiveMode::Webhook => true,
        ReceiveMode::None => false,
    };
    let mut accounts = around
        .telegram
        .iter()
        .filter(|(_, account)| receives(account))
        .peekable();
    // A host that receives nothing needs no client.
    if accounts.peek().is_none() {
        return Ok(Vec::new());
    }

    let http = open_http().context("telegram: cannot make an HTTP client")?;
    let sources = accounts.map(|(name, account)| -> Arc<dyn Source> {
        let (clock, ids) = (around.clock.clone(), around.ids.clone());
        let (name, account, http) = (name.clone(), account.clone(), http.clone());
        if account.receive == ReceiveMode::Webhook {
            return Arc::new(TelegramWebhookSource::new(name, account, http, ids));
        }
        Arc::new(TelegramSource::new(name, account, http, clock, ids))
    });
    Ok(sources.collect())
}

/// Returns what the calls of each account on Discord use. A server before Discord's API bars an address, so that all calls of
/// this process share its gate.
fn discord_contexts(around: &ServiceContext) -> anyhow::Result<BTreeMap<String, AccountContext>> {
    // A host without accounts needs no client.
    if around.discord.is_empty() {
        return Ok(BTreeMap::new());
    }

    let http = discord_client::open_http().context("discord: cannot make an HTTP client")?;
    // Waits are those of the runtime, whatever the time is.
    let timer: SharedClock = Arc::new(SystemClock);
    let mut gates = AddressGates::default();
    let contexts = around.discord.iter().map(|(name, account)| {
        let context = AccountContext {
            name: name.clone(),
            account: account.clone(),
            http: http.clone(),
            ids: around.ids.clone(),
            timer: timer.clone(),
            clock: around.clock.clone(),
            gate: gates.gate(account.base_url.join("").as_str()),
        };
        (name.clone(), context)
    });
    Ok(contexts.collect())
}

/// Returns the sources of the accounts on Discord that are read.
fn discord_sources(contexts: &BTreeMap<String, AccountContext>) -> impl Iterator<Item = Arc<dyn Source>> {
    let is_read = |context: &&AccountContext| match context.account.receive {
        discord::ReceiveMode::Gateway => true,
        discord::ReceiveMode::None => false,
    };
    let read = contexts.values().filter(is_read);
    read.map(|context| -> Arc<dyn Source> { Arc::new(DiscordSource::new(context.clone())) })
}

/// Returns the sources of the apps of Slack that have a socket.
fn slack_sources(around: &ServiceContext) -> anyhow::Result<Vec<Arc<dyn Source>>> {
    let mut sources: Vec<Arc<dyn Source>> = Vec::new();
    for (name, account) in &around.slack {
        let app_token = match (account.receive, &account.app_token) {
            (SlackReceive::Socket, Some(token)) => token.clone(),
            // Without the token the file is refused when it is read.
            (SlackReceive::Socket, None) | (SlackReceive::Events | SlackReceive::None, Some(_) | None) => continue,
        };
        let http = slack_client::open_http().context("slack: cannot make an HTTP client")?;
        let (clock, ids) = (around.clock.clone(), around.ids.clone());
        let source = SlackSocketSource::new(name.clone(), account.clone(), app_token, http, clock, ids);
        sources.push(Arc::new(source));
    }
    Ok(sources)
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
