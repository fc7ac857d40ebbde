//! A NATS server of the test's own, replicas of the service on it, and what they left in the streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use delivery_svc::account_gate::CallRate;
use delivery_svc::accounts::ChannelAccounts;
use delivery_svc::attempt::{CallOutcome, Repetition};
use delivery_svc::calls::ProcessCalls;
use delivery_svc::channel::discord::{DiscordChannel, DiscordPaces};
use delivery_svc::channel::http::CallTimeouts;
use delivery_svc::channel::nats::{self, NatsChannel};
use delivery_svc::channel::signature::SigningKey;
use delivery_svc::channel::slack::{SlackChannel, SlackPaces};
use delivery_svc::channel::telegram::{TelegramChannel, TelegramPaces};
use delivery_svc::channel::webchat::{self, WebchatChannel};
use delivery_svc::channel::webhook::{self, WebhookChannel, WebhookEndpoint};
use delivery_svc::channel::{Channel, ChannelRegistry, ChannelTraits, SendRequest};
use delivery_svc::chunk::{ChunkLimit, LengthUnit};
use delivery_svc::effects::DelivererContext;
use delivery_svc::former_owners;
use delivery_svc::gate_table::GateTable;
use delivery_svc::lost_replies::LostReplies;
use delivery_svc::marked_turns::MarkedTurns;
use delivery_svc::outgoing_files::OutgoingFiles;
use delivery_svc::partition_worker::{WorkerBounds, run_partition};
use delivery_svc::plan::PartLayout;
use delivery_svc::policy::SendPolicy;
use delivery_svc::restore_gate::RestoreGate;
use delivery_svc::shown_previews::SharedPreviews;
use delivery_svc::stopped_accounts::StoppedAccounts;
use delivery_svc::typing::SharedTyping;
use delivery_svc::typing_listener::show_typing;
use shared::bus::partition::{self, PartitionGroup};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, OffsetClock, SharedClock, SystemClock};
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::{Event, EventId};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::platform::discord::{DISCORD, DiscordAccount};
use shared::platform::slack::{SLACK, SlackAccount};
use shared::platform::telegram::{TELEGRAM, TelegramAccount};
use shared::process::lifecycle::ShutdownSignal;
use shared::retry::RetrySchedule;
use shared::testing::nats::NatsServer;
use shared::testing::{SeededIds, connect_to, eventually};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage;
use shared::wire::subject;
use shared::wire::topology::streams;
use shared::wire::unknown::UnknownFields;
use tokio::sync::{Semaphore, watch};
use ulid::Ulid;

use crate::scripted::{SCRIPTED, Script};

/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// The secret of every webhook account.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Three attempts, 50 ms apart.
const SCHEDULE: RetrySchedule = RetrySchedule {
    initial_ms: 50,
    max_ms: 50,
    factor: 1.0,
    max_attempts: 3,
    jitter: 0.0,
};

/// Wait after a refused token.
const REAUTH_WAIT: Duration = Duration::from_millis(500);

/// A rate that holds nothing back.
const UNPACED: CallRate = CallRate {
    burst: 1_000,
    interval: Duration::from_millis(1),
};
const UNPACED_TELEGRAM: TelegramPaces = TelegramPaces {
    account: UNPACED,
    direct: UNPACED,
    group: UNPACED,
};
const UNPACED_DISCORD: DiscordPaces = DiscordPaces {
    account: UNPACED,
    chat: UNPACED,
};

/// The same for Slack.
const UNPACED_SLACK: SlackPaces = SlackPaces {
    account: UNPACED,
    channel: UNPACED,
};

pub(crate) struct World {
    pub(crate) server: NatsServer,
    pub(crate) bus: Bus,
}

/// How a replica is set up.
#[derive(Default)]
pub(crate) struct Setup {
    /// The URL of webhook account `demo`.
    pub(crate) url: Option<String>,
    pub(crate) policy: SendPolicy,
    /// Form and size of the parts of webhook account `demo`.
    pub(crate) layout: PartLayout,
    /// Number of parts that channel `numbered` takes; its calls for later ones never end. `None` = all.
    pub(crate) taken: Option<u32>,
    /// Accounts of channel `telegram`.
    pub(crate) telegram: BTreeMap<String, TelegramAccount>,
    /// Rates of channel `telegram`; `None` = as fast as it goes.
    pub(crate) paces: Option<TelegramPaces>,
    /// Accounts of channel `discord`.
    pub(crate) discord: BTreeMap<String, DiscordAccount>,
    /// Rates of channel `discord`; `None` = as fast as it goes.
    pub(crate) discord_paces: Option<DiscordPaces>,
    /// Time by which the clock of deliveries is ahead.
    pub(crate) ahead: Duration,
    /// Time after which a preview without beats is taken back; `None` = longer than any test.
    pub(crate) abandoned_after: Option<Duration>,
    /// Time after a call for which its part may still appear.
    pub(crate) arrival_wait: Duration,
    /// Accounts of channel `slack`.
    pub(crate) slack: BTreeMap<String, SlackAccount>,
    /// What channel `scripted` does.
    pub(crate) script: Script,
}

/// A platform with parts of 10 characters that has two ids for each.
struct Numbered {
    taken: Option<u32>,
}

#[async_trait::async_trait]
impl Channel for Numbered {
    fn traits(&self, _account: &str) -> ChannelTraits {
        ChannelTraits {
            layout: PartLayout::markdown(Some(ChunkLimit {
                unit: LengthUnit::Characters,
                max: 10,
            })),
            waits_for_remote: true,
            repetition: Repetition::Recognised,
            finds_parts: false,
            typing_lasts: None,
            previews: false,
            max_file_bytes: None,
        }
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
        let index = shipment.part.index;
        if self.taken.is_some_and(|taken| index >= taken) {
            std::future::pending::<()>().await;
        }

        CallOutcome::Accepted {
            platform_ids: numbered_ids(index),
            live: None,
        }
    }
}

/// Returns the ids that [`Numbered`] has for the part `index`.
pub(crate) fn numbered_ids(index: u32) -> Vec<String> {
    vec![format!("{index}a"), format!("{index}b")]
}

/// A platform whose adapter panics at every call.
struct Broken;

#[async_trait::async_trait]
impl Channel for Broken {
    fn traits(&self, _account: &str) -> ChannelTraits {
        ChannelTraits {
            waits_for_remote: true,
            ..ChannelTraits::default()
        }
    }

    async fn send(&self, _shipment: &SendRequest<'_>) -> CallOutcome {
        panic!("the adapter is broken")
    }
}

/// A replica in a runtime of its own, so that it can be killed.
pub(crate) struct Replica {
    runtime: Option<tokio::runtime::Runtime>,
    shutdown: ShutdownSignal,
    ended: watch::Receiver<bool>,
}

impl Replica {
    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.shutdown.trigger();
        let ended = tokio::time::timeout(DEADLINE, self.ended.wait_for(|ended| *ended)).await;
        assert!(matches!(ended, Ok(Ok(_))), "the replica does not end");
    }

    /// Ends it between two steps, without giving anything back.
    pub(crate) fn kill(mut self) {
        self.drop_runtime();
    }

    fn drop_runtime(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.drop_runtime();
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let (server, bus) = shared::testing::world().await;
        Self { server, bus }
    }

    /// Starts a replica named `instance`.
    pub(crate) fn replica(&self, instance: &str, setup: Setup) -> Replica {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let (shutdown, (told, ended)) = (ShutdownSignal::default(), watch::channel(false));
        let (url, instance, stop) = (self.server.url(), instance.to_owned(), shutdown.clone());
        runtime.spawn(async move {
            serve(url, instance, setup, stop).await;
            told.send_replace(true);
        });

        Replica {
            runtime: Some(runtime),
            shutdown,
            ended,
        }
    }

    /// Publishes `reply` under its id.
    pub(crate) async fn publish(&self, reply: &Reply) -> u64 {
        let out = OutgoingMessage::new(subject::delivery(&reply.delivery_context), reply).msg_id(reply.id.to_string());
        self.bus.publish(out).await.expect("it is stored").sequence
    }

    pub(crate) async fn receipts(&self, to: &DeliveryContext) -> Vec<Receipt> {
        self.all(streams::RECEIPTS, &subject::receipt(to)).await
    }

    /// What the receipts of `to` say, those left out that merely say that a call was begun, or is planned.
    pub(crate) async fn outcomes(&self, to: &DeliveryContext) -> Vec<ReceiptStep> {
        let steps = self.receipts(to).await.into_iter().map(|receipt| receipt.step);
        steps
            .filter(|step| !matches!(step, ReceiptStep::AttemptStarted { .. } | ReceiptStep::Planned { .. }))
            .collect()
    }

    /// All events that were sent, in order.
    pub(crate) async fn sent_events(&self) -> Vec<Event> {
        self.all(streams::EVENTS, "nexus.ev.>").await
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.all(streams::DLQ, "nexus.dlq.*").await
    }

    async fn all<T: WireMessage>(&self, stream: &str, subject: &str) -> Vec<T> {
        let mut found = Vec::new();
        let mut from = 1;
        loop {
            let batch = self
                .bus
                .read_history(stream, subject, from, 1_000)
                .await
                .expect("the stream is read");
            let Some(last) = batch.last() else { return found };
            from = last.sequence + 1;
            found.extend(batch.iter().map(|stored| stored.decode::<T>().expect("it can be read")));
        }
    }

    /// Waits until nothing is left to deliver, in order or parked.
    pub(crate) async fn settled(&self) {
        eventually("everything is settled", async || {
            let deliveries = self
                .bus
                .stream_state(streams::DELIVERIES)
                .await
                .expect("a state")
                .messages;

            let parked = self.bus.stream_state(streams::PARKED).await.expect("a state").messages;
            deliveries + parked == 0
        })
        .await;
    }
}

/// Returns webhook account `demo` at `url`.
fn webhook_accounts(url: Option<String>, layout: PartLayout) -> HashMap<String, WebhookEndpoint> {
    let endpoint = url.map(|url| WebhookEndpoint {
        url: url.parse().expect("a URL"),
        key: SigningKey::parse(SECRET).expect("a key"),
        layout,
    });
    endpoint
        .map(|endpoint| ("demo".to_owned(), endpoint))
        .into_iter()
        .collect()
}

/// Returns the channels of a replica with `setup`.
fn open_channels(bus: &Bus, setup: Setup) -> ChannelRegistry {
    let endpoints = webhook_accounts(setup.url, setup.layout);
    let timeouts = CallTimeouts {
        connect: Duration::from_secs(30),
        whole: Duration::from_secs(30),
    };
    ChannelRegistry::default()
        .with(nats::NAME, NatsChannel::new(bus.clone()))
        .with("broken", Broken)
        .with(SCRIPTED, setup.script)
        .with(
            TELEGRAM,
            TelegramChannel::new(setup.telegram, timeouts, setup.paces.unwrap_or(UNPACED_TELEGRAM)).expect("a client"),
        )
        .with(
            DISCORD,
            DiscordChannel::new(
                setup.discord,
                timeouts,
                setup.discord_paces.unwrap_or(UNPACED_DISCORD),
                Arc::new(SystemClock),
            )
            .expect("a client"),
        )
        .with(
            SLACK,
            SlackChannel::new(setup.slack, timeouts, UNPACED_SLACK).expect("a client"),
        )
        .with("numbered", Numbered { taken: setup.taken })
        .with(webchat::NAME, WebchatChannel::new(bus.clone(), Duration::from_secs(30)))
        .with(
            webhook::NAME,
            WebhookChannel::new(endpoints, timeouts).expect("a client"),
        )
}

async fn serve(url: String, instance: String, setup: Setup, shutdown: ShutdownSignal) {
    let bus = connect_to(&url, "test").await;
    let gates = Arc::new(GateTable::new(Arc::new(SystemClock), REAUTH_WAIT));
    let accounts = ChannelAccounts {
        telegram: setup.telegram.clone(),
        discord: setup.discord.clone(),
        slack: setup.slack.clone(),
        ..ChannelAccounts::default()
    };
    let mut exchange = StoppedAccounts::new(&bus, Arc::clone(&gates), accounts.token_hashes(), Arc::new(SystemClock));
    exchange.exchange().await.expect("the bucket is read");
    tokio::spawn(exchange.keep_exchanged(shutdown.clone()));

    let (ahead, arrival_wait, policy) = (setup.ahead, setup.arrival_wait, setup.policy.clone());
    let abandoned_after = setup.abandoned_after.unwrap_or(DEADLINE);
    let channels = open_channels(&bus, setup);
    let ahead = i64::try_from(ahead.as_millis()).expect("small");
    let clock: SharedClock = OffsetClock::over(Arc::new(SystemClock), ahead);
    let outfit = Arc::new(DelivererContext {
        bus: bus.clone(),
        witness: delivery_svc::receipts::receipts_witness(&bus),
        channels,
        gates: Arc::clone(&gates),
        calls: ProcessCalls::new(Arc::new(SystemClock)),
        typing: SharedTyping::default(),
        marked_turns: MarkedTurns::default(),
        previews: SharedPreviews::new(abandoned_after),
        instance: instance.clone(),
        patience: Duration::from_secs(30),
        arrival_wait,
        files: OutgoingFiles::new(&bus, Arc::new(SystemClock)),
        policy,
        restored: RestoreGate::open(&bus, SystemClock.now())
            .await
            .expect("the leader answers"),
        schedule: SCHEDULE,
        reauth_wait: REAUTH_WAIT,
        clock,
        ids: Arc::new(SeededIds::new(1)),
    });

    let (_always, may_join) = watch::channel(true);
    let group = PartitionGroup {
        name: "delivery",
        stream: streams::DELIVERIES,
        instance,
        may_join,
        settled: partition::SettledOutcome::ByServer,
        tap: None,
        batch: 500,
        clock: Arc::new(SystemClock),
    };

    let telling = Arc::clone(&outfit);
    tokio::spawn(async move { former_owners::serve_inquiries(&telling.bus, &telling.instance, &telling.calls).await });
    tokio::spawn(show_typing(Arc::clone(&outfit)));
    tokio::spawn(LostReplies::new(Arc::clone(&outfit)).watch_queue(shutdown.clone()));
    let slots = Arc::new(Semaphore::new(16));
    let bounds = WorkerBounds {
        in_flight: 256,
        drain: Duration::from_secs(5),
    };

    let handler = move |owned| run_partition(owned, Arc::clone(&outfit), Arc::clone(&slots), bounds);
    partition::run(bus, group, shutdown, handler).await;
}

/// The reply number `number` to `peer`, made just now; ids ascend with numbers.
pub(crate) fn reply(number: u64, channel: &str, peer: &str) -> Reply {
    static BEGUN: OnceLock<u64> = OnceLock::new();
    let begun = *BEGUN.get_or_init(|| SystemClock.now().0.unsigned_abs());
    reply_of(
        Ulid::from_parts(begun + number, u128::from(number)),
        number,
        channel,
        peer,
    )
}

/// As [`reply`], made long ago.
pub(crate) fn old_reply(number: u64, channel: &str, peer: &str) -> Reply {
    reply_of(
        Ulid::from_parts(1_700_000_000_000 + number, u128::from(number)),
        number,
        channel,
        peer,
    )
}

fn reply_of(id: Ulid, number: u64, channel: &str, peer: &str) -> Reply {
    let event = EventId::parse(format!("test:{peer}/{number}")).expect("an id");
    let account = if channel == webhook::NAME { "demo" } else { "default" };

    Reply {
        id,
        turn: id,
        session: SessionRef {
            persona: "echo".to_owned(),
            session: format!("dm:{peer}"),
        },
        delivery_context: DeliveryContext {
            channel: channel.to_owned(),
            account_id: Some(account.to_owned()),
            peer_id: Some(peer.to_owned()),
            thread_id: None,
            reply_to_id: Some(event.to_string()),
        },
        content: format!("echo: {number}"),
        attachments: Vec::new(),
        interactive: None,
        causation: DispatchCause { event, hops: 0 },
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    }
}
