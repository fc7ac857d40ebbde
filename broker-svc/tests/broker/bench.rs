//! A server of one's own, brokers on it, and what tests ask of it.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use broker_svc::agent::personas::Personas;
use broker_svc::agent::port::Agent;
use broker_svc::approval::auditor;
use broker_svc::approval::timer_handler::TimerHandler;
use broker_svc::broker::BrokerContext;
use broker_svc::config::BrokerConfig;
use broker_svc::hooks::rules::HookRules;
use broker_svc::queue::{claims, feed, quarantine, sweeper};
use shared::bus::{Bus, OutgoingMessage, StoredMessage, claim, ledger};
use shared::clock::{Clock, SystemClock};
use shared::llm::{self, LlmConfig};
use shared::model::dispatch::{DeliveryContext, Dispatch};
use shared::model::event::EventId;
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord};
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::nats::NatsServer;
use shared::testing::{connect_to, eventually, sample};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::streams;
use tokio::process::{Child, Command};

/// The longest that any condition is waited for.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) struct Bench {
    pub(crate) server: NatsServer,
    pub(crate) bus: Bus,
}

/// A broker in this process; ended when dropped.
pub(crate) struct Running {
    pub(crate) broker: Arc<BrokerContext>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Running {
    /// Asks it to stop and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.broker.shutdown.trigger();
        for task in self.tasks.drain(..) {
            task.await.expect("a task ends well");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.broker.shutdown.trigger();
        for task in &self.tasks {
            task.abort();
        }
    }
}

pub(crate) fn session(name: &str) -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: name.to_owned(),
    }
}

pub(crate) fn dispatch(to: &SessionRef, event: u64) -> Dispatch {
    let event_id = EventId::parse(format!("test:{}/{event}", to.session)).expect("an event id");
    let timestamp = SystemClock.now();

    Dispatch {
        delivery_context: DeliveryContext {
            channel: "test".to_owned(),
            peer_id: Some(to.session.clone()),
            ..DeliveryContext::default()
        },
        ..sample::dispatch(event_id, event, "hook", to.clone(), timestamp)
    }
}

impl Bench {
    pub(crate) async fn start() -> Self {
        let (server, bus) = shared::testing::world().await;
        Self { server, bus }
    }

    /// A broker that nobody runs yet, on a connection of its own.
    pub(crate) async fn broker(&self, name: &str, personas: &str) -> Arc<BrokerContext> {
        self.broker_with(name, personas, BrokerConfig::default()).await
    }

    async fn broker_with(&self, name: &str, personas: &str, config: BrokerConfig) -> Arc<BrokerContext> {
        Arc::new(broker_at(&self.server.url(), name, personas, config).await)
    }

    pub(crate) async fn run(&self, name: &str, personas: &str) -> Running {
        self.run_with(name, personas, BrokerConfig::default()).await
    }

    pub(crate) async fn run_with(&self, name: &str, personas: &str, config: BrokerConfig) -> Running {
        run_broker(self.broker_with(name, personas, config).await)
    }

    /// A broker whose personas may ask the model of `llm`.
    pub(crate) async fn run_asking(&self, name: &str, personas: &str, llm: LlmConfig) -> Running {
        let model = llm::open(llm, Arc::new(SystemClock), ShutdownSignal::default()).expect("a usable model");
        let broker = broker_at(&self.server.url(), name, personas, BrokerConfig::default()).await;
        run_broker(Arc::new(broker.with_model(model)))
    }

    /// A broker whose personas may ask the model of `llm`, with the hooks of `hooks.yaml`.
    pub(crate) async fn run_hooked(&self, name: &str, personas: &str, hooks: &str, llm: LlmConfig) -> Running {
        let model = llm::open(llm, Arc::new(SystemClock), ShutdownSignal::default()).expect("a usable model");
        let broker = broker_at(&self.server.url(), name, personas, BrokerConfig::default()).await;
        let rules = HookRules::parse(hooks, &broker.personas).expect("hooks");
        run_broker(Arc::new(broker.with_model(model).with_hooks(rules)))
    }

    /// Appends `entries` to the ledger of `session`, as an owner that is gone did.
    pub(crate) async fn append(&self, session: &SessionRef, entries: Vec<LedgerEntry>) {
        let (last, newest) = self.ledger(session).await.pop().expect("a ledger");
        let record = LedgerRecord {
            append: AppendId {
                counter: newest.append.counter + 1,
                ..newest.append
            },
            at: SystemClock.now(),
            held_ms: 0,
            entries,
        };

        let appended = ledger::append(&self.bus, session, &record, last, &TraceCarrier::default()).await;
        appended.expect("it is appended");
    }

    /// What hooks told `AUDIT`, oldest first.
    pub(crate) async fn hook_records(&self) -> Vec<serde_json::Value> {
        let stored = self
            .bus
            .read_history(streams::AUDIT, "nexus.audit.turn", 1, 10_000)
            .await
            .expect("audit");
        let read = |message: &StoredMessage| serde_json::from_slice(&message.payload).expect("a record");
        stored.iter().map(read).collect()
    }

    /// Runs a broker for which `agent` answers.
    pub(crate) async fn run_answering(&self, name: &str, agent: Arc<dyn Agent>) -> Running {
        let broker = broker_at(&self.server.url(), name, "", BrokerConfig::default()).await;
        run_broker(Arc::new(broker.with_agent(agent)))
    }

    /// Publishes `dispatch` without claiming its session.
    pub(crate) async fn publish(&self, dispatch: &Dispatch) -> u64 {
        let out = OutgoingMessage::new(subject::dispatch(&dispatch.target), dispatch).msg_id(dispatch.id.to_string());
        self.bus.publish(out).await.expect("a dispatch is stored").sequence
    }

    pub(crate) async fn claim(&self, session: &SessionRef) {
        claim::publish(&self.bus, session, &TraceCarrier::default())
            .await
            .expect("a claim is stored or held");
    }

    /// Publishes a dispatch as hook-svc does: then the claim.
    pub(crate) async fn send(&self, to: &SessionRef, event: u64) -> Dispatch {
        let dispatch = dispatch(to, event);
        self.publish(&dispatch).await;
        self.claim(to).await;
        dispatch
    }

    pub(crate) async fn ledger(&self, session: &SessionRef) -> Vec<(u64, LedgerRecord)> {
        let records = ledger::read_after(&self.bus, session, 0).await.expect("a ledger");
        records
            .into_iter()
            .map(|(sequence, record)| (sequence, record.expect("a record")))
            .collect()
    }

    pub(crate) async fn entries(&self, session: &SessionRef) -> Vec<LedgerEntry> {
        self.ledger(session)
            .await
            .into_iter()
            .flat_map(|(_, record)| record.entries)
            .collect()
    }

    /// Events of the completed turns of `session`, in order.
    pub(crate) async fn completed(&self, session: &SessionRef) -> Vec<String> {
        let mut started = std::collections::BTreeMap::new();
        let mut events = Vec::new();
        for entry in self.entries(session).await {
            if let LedgerEntry::TurnStarted { turn, dispatches, .. } = entry {
                started.insert(turn, dispatches[0].event_id.to_string());
            } else if let LedgerEntry::TurnCompleted { turn, .. } = entry {
                events.push(started[&turn].clone());
            }
        }

        events
    }

    pub(crate) async fn replies(&self) -> Vec<Reply> {
        let stored = self
            .bus
            .read_history(streams::DELIVERIES, "nexus.dl.>", 1, 1_000)
            .await
            .expect("deliveries");
        stored
            .iter()
            .map(|message: &StoredMessage| message.decode().expect("a reply"))
            .collect()
    }

    /// Waits until `count` replies are there: each is published after the append that ends its turn.
    pub(crate) async fn until_replies(&self, count: usize) -> Vec<Reply> {
        eventually("the replies", async || self.replies().await.len() >= count).await;
        self.replies().await
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        let stored = self
            .bus
            .read_history(streams::DLQ, "nexus.dlq.>", 1, 1_000)
            .await
            .expect("dead letters");
        stored
            .iter()
            .map(|message: &StoredMessage| message.decode().expect("a dead letter"))
            .collect()
    }

    pub(crate) async fn claims(&self) -> u64 {
        self.bus.stream_state(streams::CLAIMS).await.expect("claims").messages
    }
}

/// What a child of the tests is told under `name`; nothing in the tests themselves.
#[expect(clippy::disallowed_methods, reason = "the test tells its own child who it is")]
pub(crate) fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A process of its own that runs `test`, which is none without what it is `told`.
pub(crate) fn child(test: &str, told: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().expect("the test itself"))
        .args(["--exact", test])
        .envs(told.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a child")
}

/// A broker that nobody runs yet, on a connection of its own to the server at `url`.
pub(crate) async fn broker_at(url: &str, name: &str, personas: &str, config: BrokerConfig) -> BrokerContext {
    BrokerContext::new(
        connect_to(url, "test").await,
        Arc::new(SystemClock),
        name.to_owned(),
        config,
        Personas::parse(personas).expect("personas"),
        ShutdownSignal::default(),
        Duration::from_secs(4),
    )
}

pub(crate) fn run_broker(broker: Arc<BrokerContext>) -> Running {
    let (pulling, sharing) = (Arc::clone(&broker), Arc::clone(&broker));
    let timers = TimerHandler {
        bus: broker.bus.clone(),
        clock: Arc::clone(&broker.clock),
        store: Arc::clone(broker.desk()),
    };
    let tasks = vec![
        tokio::spawn(async move { claims::serve(&pulling, |_| ()).await }),
        tokio::spawn(feed::serve(
            Arc::clone(&broker.feed),
            broker.bus.clone(),
            broker.parts.clone(),
            broker.shutdown.clone(),
        )),
        tokio::spawn(async move { sharing.share_parts().await }),
        tokio::spawn(sweeper::serve(Arc::clone(&broker))),
        tokio::spawn(quarantine::watch_marks(Arc::clone(&broker))),
        tokio::spawn(timers.serve(broker.shutdown.clone())),
        tokio::spawn(auditor::serve(Arc::clone(&broker))),
        tokio::spawn(Arc::clone(broker.hooks()).follow_breakers(broker.shutdown.clone())),
    ];

    Running { broker, tasks }
}

pub(crate) fn events_of(to: &SessionRef, count: u64) -> Vec<String> {
    (1..=count)
        .map(|event| format!("test:{}/{event}", to.session))
        .collect()
}

/// `entry` without when the server stored what its cursor names: no two runs have that in common.
pub(crate) fn unstamped(entry: LedgerEntry) -> LedgerEntry {
    let mut value = serde_json::to_value(entry).expect("an entry is JSON");
    forget_newest(&mut value);
    serde_json::from_value(value).expect("an entry")
}

fn forget_newest(value: &mut serde_json::Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("newest");
        fields.values_mut().for_each(forget_newest);
    }
}
