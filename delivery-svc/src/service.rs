//! The service: DELIVERIES → partition → lane → channel → receipt → sent event → ack.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use shared::bus::partition::{self, PartitionGroup};
use shared::llm::LlmConfig;
use shared::metric::Metric;
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::slack_tokens::{KeeperContext, TokenKeeper, open_keepers};
use shared::platform::telegram::TELEGRAM;
use shared::process::config::{ConfigFault, file_faults};
use shared::process::health::Health;
use shared::process::{CommonConfig, Service, ServiceShell};
use shared::wire::topology::streams;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::accounts::{self, ChannelAccounts};
use crate::calls::ProcessCalls;
use crate::channel::ChannelRegistry;
use crate::channel::discord::{DiscordChannel, DiscordPaces};
use crate::channel::http::CallTimeouts;
use crate::channel::nats::{self, NatsChannel};
use crate::channel::slack::{SlackChannel, SlackPaces};
use crate::channel::telegram::{TelegramChannel, TelegramPaces};
use crate::channel::webchat::{self, WebchatChannel};
use crate::channel::webhook::{self, WebhookChannel};
use crate::channel_registry;
use crate::config::DeliveryConfig;
use crate::effects::DelivererContext;
use crate::former_owners;
use crate::gate_table::GateTable;
use crate::lost_replies::LostReplies;
use crate::marked_turns::MarkedTurns;
use crate::metric_table::METRICS;
use crate::outgoing_files::OutgoingFiles;
use crate::partition_worker::{WorkerBounds, run_partition};
use crate::receipts::receipts_witness;
use crate::restore_gate::RestoreGate;
use crate::shown_previews::SharedPreviews;
use crate::stopped_accounts::StoppedAccounts;
use crate::typing::SharedTyping;
use crate::typing_listener::show_typing;

/// Part of the service's health: whether platforms accept the accounts' tokens.
const ACCOUNTS: &str = "accounts";

/// Number of messages requested at once, per partition.
const PULL_BATCH: usize = 500;

/// Time after the start of a call for which its part may still appear on the platform: longer than any call and any
/// wait of a platform's own servers.
const ARRIVAL_WAIT: Duration = Duration::from_mins(2);

/// Channel of messages between agents.
const AGENTS: &str = "agent";

/// Maximum time to record the streams' last positions when the service ends.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// Maximum time to store renewed tokens when the service ends.
const LAST_RENEWAL: Duration = Duration::from_secs(20);

/// The delivery service: replies leave through it, and the sent parts return as events.
#[derive(Debug)]
pub struct DeliveryService;

impl Service for DeliveryService {
    const NAME: &'static str = "delivery-svc";
    const SECTION: &'static str = "delivery";
    const METRICS: &'static [&'static [Metric]] = &[METRICS];
    type Config = DeliveryConfig;

    fn check(config: &Self::Config) -> Vec<String> {
        config.faults()
    }

    fn check_files(_config: &Self::Config, common: &CommonConfig, _llm: &LlmConfig) -> Vec<ConfigFault> {
        let faults = |text: &str| accounts::read(text).err().map(|error| error.0).unwrap_or_default();
        file_faults(&common.files.channels, faults)
    }

    async fn serve(shell: ServiceShell<Self::Config>) -> anyhow::Result<()> {
        let config = &shell.config;
        let accounts = read_accounts(&shell)?;
        let configured = channel_registry::configured_channels(&accounts);
        let hashes = accounts.token_hashes();
        let keeping = start_keepers(&shell, &accounts).await?;
        let channels = open_channels(&shell, accounts)?;
        let bounds = WorkerBounds {
            in_flight: config.max_in_flight,
            drain: config.call_timeout(),
        };

        let (gates, exchange) = open_gates(&shell, hashes).await;
        let parked_slots = Arc::new(Semaphore::new(config.max_parked_in_flight));
        let witness = receipts_witness(&shell.bus);

        // Before any receipt is used for a decision. If the leader cannot be reached, later decisions check again.
        if let Err(error) = witness.check(shell.clock.now()).await {
            tracing::warn!(%error, "unknown if RECEIPTS is complete; retrying");
        }

        let outfit = Arc::new(DelivererContext {
            bus: shell.bus.clone(),
            witness: witness.clone(),
            channels,
            gates: Arc::clone(&gates),
            calls: ProcessCalls::new(Arc::clone(&shell.clock)),
            typing: SharedTyping::default(),
            marked_turns: MarkedTurns::default(),
            previews: SharedPreviews::default(),
            instance: shell.instance.clone(),
            patience: Duration::from_millis(config.mute_owner_wait_ms),
            arrival_wait: ARRIVAL_WAIT,
            files: OutgoingFiles::new(&shell.bus, Arc::clone(&shell.clock)),
            policy: config.send_policy.clone(),
            restored: RestoreGate::open(&shell.bus, shell.clock.now())
                .await
                .context("failed to read the state of the restore")?,
            schedule: config.retry,
            reauth_wait: Duration::from_millis(config.reauth_wait_ms),
            clock: Arc::clone(&shell.clock),
            ids: Arc::clone(&shell.ids),
        });

        let (_always, may_join) = watch::channel(true);
        let group = partition_group(&shell, may_join);

        // Before any call is made, because the next owner of a partition may ask about it.
        let [telling, typing] = spawn_listeners(&outfit);
        let told = tokio::spawn(channel_registry::keep_channels_published(
            shell.bus.clone(),
            configured,
            shell.shutdown.clone(),
        ));
        let stopped = tokio::spawn(report_stopped(gates.watch_stopped(), shell.health.clone()));
        let exchanged = tokio::spawn(exchange.keep_exchanged(shell.shutdown.clone()));
        let lost = LostReplies::new(Arc::clone(&outfit));
        let handler = move |owned| run_partition(owned, Arc::clone(&outfit), Arc::clone(&parked_slots), bounds);
        let finding = tokio::spawn(lost.watch_queue(shell.shutdown.clone()));
        let witnessing = tokio::spawn(witness.run_witness(Arc::clone(&shell.clock), shell.shutdown.clone()));
        partition::run(shell.bus.clone(), group, shell.shutdown.clone(), handler).await;

        // A loss is detected by comparison with the last position that these tasks recorded.
        let last = tokio::time::timeout(LAST_LOOK, async { tokio::join!(witnessing, finding) });
        if last.await.is_err() {
            tracing::debug!("failed to record stream positions at shutdown");
        }

        for task in [telling, told, stopped, typing, exchanged] {
            task.abort();
        }
        end_keepers(keeping).await;

        Ok(())
    }
}

/// Starts to keep the rotated tokens of `accounts` valid; those that other replicas have renewed are in use then.
async fn start_keepers(
    shell: &ServiceShell<DeliveryConfig>,
    accounts: &ChannelAccounts,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let context = KeeperContext {
        bus: shell.bus.clone(),
        clock: Arc::clone(&shell.clock),
        health: shell.health.clone(),
        instance: shell.instance.clone(),
    };
    let keepers = open_keepers(&accounts.slack, &context).await;
    let keepers = keepers.context("failed to set up the HTTP client")?;
    let keep = |keeper: TokenKeeper| tokio::spawn(keeper.keep(shell.shutdown.clone()));
    Ok(keepers.into_iter().map(keep).collect())
}

/// Waits until the keepers have ended: a renewed token that is in this process alone would be lost with it.
async fn end_keepers(keeping: Vec<JoinHandle<()>>) {
    let ended = async {
        for task in keeping {
            if let Err(error) = task.await {
                tracing::warn!(%error, "the keeper of a token died");
            }
        }
    };
    if tokio::time::timeout(LAST_RENEWAL, ended).await.is_err() {
        tracing::warn!("shutdown before a renewed token was stored");
    }
}

/// Returns the group that shares the partitions of `DELIVERIES`.
fn partition_group(shell: &ServiceShell<DeliveryConfig>, may_join: watch::Receiver<bool>) -> PartitionGroup {
    PartitionGroup {
        name: "delivery",
        stream: streams::DELIVERIES,
        instance: shell.instance.clone(),
        may_join,
        settled: partition::SettledOutcome::ByServer,
        tap: None,
        batch: PULL_BATCH,
        clock: Arc::clone(&shell.clock),
    }
}

/// Starts the listeners for former calls of this process, and for beats of running turns.
fn spawn_listeners(outfit: &Arc<DelivererContext>) -> [JoinHandle<()>; 2] {
    let telling = Arc::clone(outfit);
    let telling = tokio::spawn(async move {
        former_owners::serve_inquiries(&telling.bus, &telling.instance, &telling.calls).await;
    });
    [telling, tokio::spawn(show_typing(Arc::clone(outfit)))]
}

/// Returns the accounts' gates, and the exchange with other replicas.
async fn open_gates(
    shell: &ServiceShell<DeliveryConfig>,
    hashes: BTreeMap<String, String>,
) -> (Arc<GateTable>, StoppedAccounts) {
    let probe_every = Duration::from_millis(shell.config.reauth_wait_ms);
    let gates = Arc::new(GateTable::new(Arc::clone(&shell.clock), probe_every));
    let mut exchange = StoppedAccounts::new(&shell.bus, Arc::clone(&gates), hashes, Arc::clone(&shell.clock));

    // Before any call is made: another replica may know that a token is refused.
    if let Err(error) = exchange.exchange().await {
        tracing::warn!(%error, "unknown which tokens are refused; retrying");
    }

    (gates, exchange)
}

/// Reports the accounts whose token is refused, and each change of them, until `stopped` ends.
async fn report_stopped(mut stopped: watch::Receiver<BTreeSet<String>>, health: Health) {
    loop {
        let names: Vec<String> = stopped.borrow_and_update().iter().cloned().collect();
        metrics::gauge!("nexus_delivery_stopped_accounts")
            .set(f64::from(u32::try_from(names.len()).unwrap_or(u32::MAX)));
        if names.is_empty() {
            health.set(
                ACCOUNTS,
                true,
                "every account's token is accepted, as far as it was used",
            );
        } else {
            let names = names.join(", ");
            health.set_degraded(ACCOUNTS, &format!("token refused, deliveries wait: {names}"));
        }

        if stopped.changed().await.is_err() {
            return;
        }
    }
}

/// Reads the accounts in `channels.yaml`.
fn read_accounts(shell: &ServiceShell<DeliveryConfig>) -> anyhow::Result<ChannelAccounts> {
    let path = &shell.common.files.channels;
    let text = if path.is_empty() {
        String::new()
    } else {
        std::fs::read_to_string(path).with_context(|| format!("files.channels: cannot read `{path}`"))?
    };
    accounts::read(&text).with_context(|| format!("files.channels: `{path}`"))
}

fn open_channels(shell: &ServiceShell<DeliveryConfig>, accounts: ChannelAccounts) -> anyhow::Result<ChannelRegistry> {
    let config = &shell.config;
    let timeouts = CallTimeouts {
        connect: Duration::from_millis(config.connect_timeout_ms),
        whole: config.call_timeout(),
    };

    let answer_within = Duration::from_millis(config.webchat_answer_ms);
    let local = nats::LOCAL
        .into_iter()
        .fold(ChannelRegistry::default(), |channels, name| {
            channels.with(name, NatsChannel::of_account(shell.bus.clone(), name))
        });
    let own = local
        .with(nats::NAME, NatsChannel::new(shell.bus.clone()))
        // Replies of an agent to another agent that wrote to it; the other agent's client subscribes to them.
        .with(AGENTS, NatsChannel::new(shell.bus.clone()))
        .with(webchat::NAME, WebchatChannel::new(shell.bus.clone(), answer_within))
        .with(
            TELEGRAM,
            TelegramChannel::new(accounts.telegram, timeouts, TelegramPaces::OFFICIAL).context("failed to set up the HTTP client")?,
        )
        .with(
            DISCORD,
            DiscordChannel::new(accounts.discord, timeouts, DiscordPaces::OFFICIAL, Arc::clone(&shell.clock))
                .context("failed to set up the HTTP client")?,
        )
        .with(
            SLACK,
            SlackChannel::new(accounts.slack, timeouts, SlackPaces::OFFICIAL).context("failed to set up the HTTP client")?,
        );

    // The channel exists even without accounts, so that a dead letter reports the missing account.
    let mut endpoints = accounts.endpoints;
    endpoints.entry(webhook::NAME.to_owned()).or_default();
    let called = |endpoints| WebhookChannel::new(endpoints, timeouts).context("failed to set up the HTTP client");
    let all = endpoints.into_iter().try_fold(own, |channels, (name, endpoints)| {
        Ok::<_, anyhow::Error>(channels.with(&name, called(endpoints)?))
    })?;

    Ok(all)
}
