//! DELIVERIES → partition → lane → channel → receipt → sent event → ack.

use std::sync::Arc;

use anyhow::Context as _;
use shared::bus::partition::{self, Group};
use shared::process::{Service, Shell};
use shared::wire::topology::streams;
use tokio::sync::{Semaphore, watch};

use crate::accounts;
use crate::channel::Channels;
use crate::channel::nats::{self, NatsChannel};
use crate::channel::webchat::{self, WebchatChannel};
use crate::channel::webhook::{self, Timeouts, WebhookChannel};
use crate::config::DeliveryConfig;
use crate::desk::{Bounds, work};
use crate::effects::Outfit;

/// Messages asked for at once, per partition.
const PULL_BATCH: usize = 500;

/// The channel of messages between agents.
const AGENTS: &str = "agent";

/// The deliverer: replies leave through it, and come back as events.
#[derive(Debug)]
pub struct DeliveryService;

impl Service for DeliveryService {
    const NAME: &'static str = "delivery-svc";
    const SECTION: &'static str = "delivery";
    type Config = DeliveryConfig;

    fn check(config: &Self::Config) -> Vec<String> {
        config.faults()
    }

    async fn serve(shell: Shell<Self::Config>) -> anyhow::Result<()> {
        let config = &shell.config;
        let channels = channels(&shell)?;
        let bounds = Bounds {
            in_flight: config.max_in_flight,
            drain: config.call_timeout(),
        };
        let parked_slots = Arc::new(Semaphore::new(config.max_parked_in_flight));
        let outfit = Arc::new(Outfit {
            bus: shell.bus.clone(),
            channels,
            policy: config.send_policy.clone(),
            schedule: config.retry,
            clock: Arc::clone(&shell.clock),
            ids: Arc::clone(&shell.ids),
        });
        let (_always, may_join) = watch::channel(true);
        let group = Group {
            name: "delivery",
            stream: streams::DELIVERIES,
            instance: shell.instance.clone(),
            may_join,
            settled: partition::Settled::ByServer,
            tap: None,
            batch: PULL_BATCH,
            clock: Arc::clone(&shell.clock),
        };
        let handler = move |owned| work(owned, Arc::clone(&outfit), Arc::clone(&parked_slots), bounds);
        partition::run(shell.bus.clone(), group, shell.shutdown.clone(), handler).await;
        Ok(())
    }
}

fn channels(shell: &Shell<DeliveryConfig>) -> anyhow::Result<Channels> {
    let config = &shell.config;
    let path = &shell.common.files.channels;
    let text = if path.is_empty() {
        String::new()
    } else {
        std::fs::read_to_string(path).with_context(|| format!("files.channels: cannot read `{path}`"))?
    };
    let endpoints = accounts::read(&text).with_context(|| format!("files.channels: `{path}`"))?;
    let timeouts = Timeouts {
        connect: std::time::Duration::from_millis(config.connect_timeout_ms),
        whole: config.call_timeout(),
    };
    let answer_within = std::time::Duration::from_millis(config.webchat_answer_ms);
    Ok(Channels::default()
        .with(nats::NAME, NatsChannel::new(shell.bus.clone()))
        // What an agent answers to another one that wrote to it: whoever waits listens.
        .with(AGENTS, NatsChannel::new(shell.bus.clone()))
        .with(webchat::NAME, WebchatChannel::new(shell.bus.clone(), answer_within))
        .with(
            webhook::NAME,
            WebhookChannel::new(endpoints, timeouts).context("set up the http client")?,
        ))
}
