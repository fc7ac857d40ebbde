//! The accounts on platforms: their sources, doors, histories and files, and what operators ask of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use shared::bus::{Bus, ServiceSpec, TaskLease};
use shared::clock::{SharedClock, SystemClock, pause};
use shared::platform::discord;
use shared::platform::slack::SlackReceive;
use shared::platform::telegram::{ReceiveMode, TelegramAccount};
use shared::process::ShutdownSignal;
use tokio::task::JoinHandle;

use super::ServiceContext;
use crate::attachments::AttachmentFetcher;
use crate::attachments::keeper::{AttachmentKeeper, TASK};
use crate::backfill::desk;
use crate::backfill::open::open_histories;
use crate::backfill::runner::BackfillRunner;
use crate::config::{AcceptMode, AdapterConfig};
use crate::gateway::PlatformDoors;
use crate::intake::EventIntake;
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
use crate::source::posts::shared_watch::SharedPosts;
use crate::source::slack::begun_threads::BegunThreads;
use crate::source::slack::client as slack_client;
use crate::source::slack::endpoint::{EndpointContext, open_endpoints};
use crate::source::slack::socket::SlackSocketSource;
use crate::source::telegram::client::open_http;
use crate::source::telegram::poll::TelegramSource;
use crate::source::telegram::shared_http::SharedHttp;
use crate::source::telegram::webhook::{DoorContext, TelegramDoors, TelegramWebhookSource, open_doors};

/// Wait before a service is registered again, after that failed.
const SERVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Starts the tasks of all accounts; returns them with the doors of those to which platforms post.
pub(super) fn start_accounts(
    config: &AdapterConfig,
    around: &ServiceContext,
    publisher: SpoolPublisher,
) -> anyhow::Result<(PlatformDoors, Vec<JoinHandle<()>>)> {
    let pairings = PairingStore::new(around.bus.clone(), around.clock.clone(), around.ids.clone())
        .telling(config.pairing_notices.clone());
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
        pairings,
        attachments,
        intake: EventIntake::to_stream(around.bus.clone(), publisher),
        clock: around.clock.clone(),
        health: around.health.clone(),
        age_gate_ms: i64::try_from(config.age_gate_ms).unwrap_or(i64::MAX),
        run: around.ids.ulid(),
    };
    let threads = BegunThreads::new(&around.bus, around.clock.clone());
    let posts = SharedPosts::new(&around.bus);
    let opened = open_endpoints(
        &around.slack,
        &endpoint_context(config, around, &sink, &threads, &posts),
    );
    let opened = opened.context("slack: cannot make an HTTP client")?;
    let mut sources = opened.sources;
    sources.extend(telegram_sources(around, &posts)?);
    let mut tasks = start_receiving(around, &discord, &sink, sources, &threads)?;
    tasks.extend(opened.tasks);
    tasks.extend(start_backfills(config, around, &discord, &sink, &threads)?);
    if !around.slack.is_empty() {
        tasks.push(tokio::spawn(threads.follow(around.shutdown.clone())));
    }
    tasks.push(tokio::spawn(served));
    tasks.push(tokio::spawn(keeper.keep(around.shutdown.clone())));

    let (telegram, learned) = telegram_doors(around)?;
    tasks.extend(learned);
    let slack = opened.endpoints;
    Ok((PlatformDoors { slack, telegram }, tasks))
}

/// Returns what the endpoints of accounts use to which Slack posts.
fn endpoint_context(
    config: &AdapterConfig,
    around: &ServiceContext,
    sink: &SinkContext,
    threads: &BegunThreads,
    posts: &SharedPosts,
) -> EndpointContext {
    EndpointContext {
        bus: around.bus.clone(),
        posts: posts.clone(),
        clock: around.clock.clone(),
        keeps_on_disk: match config.accept {
            AcceptMode::Spool => true,
            AcceptMode::Stream => false,
        },
        pairings: sink.pairings.clone(),
        attachments: sink.attachments.clone(),
        threads: threads.clone(),
        health: around.health.clone(),
        ids: around.ids.clone(),
        shutdown: around.shutdown.clone(),
        age_gate_ms: sink.age_gate_ms,
    }
}

/// Starts to take orders about accounts' histories, and to read them.
fn start_backfills(
    config: &AdapterConfig,
    around: &ServiceContext,
    discord: &BTreeMap<String, AccountContext>,
    sink: &SinkContext,
    threads: &BegunThreads,
) -> anyhow::Result<[JoinHandle<()>; 2]> {
    let accounts = open_histories(&around.telegram, &around.slack, discord, threads, &around.clock)?;
    let spec = desk::service_spec(&around.bus, &accounts, &around.clock, &around.ids);
    let served = serve_operators(spec, around.bus.clone(), around.shutdown.clone());
    let runner = BackfillRunner {
        accounts,
        sink: sink.clone(),
        ids: around.ids.clone(),
        instance: around.instance.clone(),
        interval: Duration::from_mins(1) / config.backfill_calls_per_minute.max(1),
    };
    let reading = runner.run(around.shutdown.clone());
    Ok([tokio::spawn(served), tokio::spawn(reading)])
}

/// Returns the doors of the accounts to which Telegram posts, and the tasks that learn the ids of their bots.
fn telegram_doors(around: &ServiceContext) -> anyhow::Result<(TelegramDoors, Vec<JoinHandle<()>>)> {
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
    };
    Ok(open_doors(&around.telegram, &http, &context))
}

/// Starts `sources`, and those of the accounts that have a connection of their own. Their events go to JetStream past the spool.
fn start_receiving(
    around: &ServiceContext,
    discord: &BTreeMap<String, AccountContext>,
    sink: &SinkContext,
    mut sources: Vec<Arc<dyn Source>>,
    threads: &BegunThreads,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    sources.extend(discord_sources(discord));
    sources.extend(slack_sources(around, threads)?);
    Ok(start_sources(sources, sink, &around.instance, &around.shutdown))
}

/// Serves the operator's requests of `spec` until `shutdown`.
pub(super) async fn serve_operators(spec: ServiceSpec, bus: Bus, shutdown: ShutdownSignal) {
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

/// Returns the sources of the accounts on Telegram that are polled, or to which it posts, as `posts` tells.
fn telegram_sources(around: &ServiceContext, posts: &SharedPosts) -> anyhow::Result<Vec<Arc<dyn Source>>> {
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
    let polled = SharedHttp::new(http.clone());
    let sources = accounts.map(|(name, account)| -> Arc<dyn Source> {
        let (clock, ids) = (around.clock.clone(), around.ids.clone());
        let (name, account) = (name.clone(), account.clone());
        if account.receive == ReceiveMode::Webhook {
            return Arc::new(TelegramWebhookSource::new(
                name,
                account,
                http.clone(),
                ids,
                posts.clone(),
            ));
        }
        Arc::new(TelegramSource::new(name, account, polled.clone(), clock, ids))
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

/// Returns the sources of the apps of Slack that have a socket, which know `threads`.
fn slack_sources(around: &ServiceContext, threads: &BegunThreads) -> anyhow::Result<Vec<Arc<dyn Source>>> {
    let mut accounts = around.slack.iter().filter_map(|(name, account)| {
        let app_token = match (account.receive, &account.app_token) {
            (SlackReceive::Socket, Some(token)) => token.clone(),
            // Without the token the file is refused when it is read.
            (SlackReceive::Socket, None) | (SlackReceive::Events | SlackReceive::None, Some(_) | None) => return None,
        };
        Some((name.clone(), account.clone(), app_token))
    });
    // A host without a socket needs no client.
    let Some(first) = accounts.next() else {
        return Ok(Vec::new());
    };

    let http = slack_client::open_http().context("slack: cannot make an HTTP client")?;
    let source = |(name, account, app_token)| -> Arc<dyn Source> {
        let (http, clock, ids) = (http.clone(), around.clock.clone(), around.ids.clone());
        let threads = threads.clone();
        Arc::new(SlackSocketSource::new(
            name, account, app_token, http, threads, clock, ids,
        ))
    };
    Ok(std::iter::once(first).chain(accounts).map(source).collect())
}
