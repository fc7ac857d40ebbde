//! Replicas in this process, with a server of their own and clocks that a test moves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adapter_svc::AdapterConfig;
use adapter_svc::attachments::AttachmentFetcher;
use adapter_svc::attachments::fetcher::AccountMedia;
use adapter_svc::config::AttachmentConfig;
use adapter_svc::intake::EventIntake;
use adapter_svc::pairing::PairingStore;
use adapter_svc::publisher::SpoolPublisher;
use adapter_svc::service::{RunningAdapter, ServiceContext};
use adapter_svc::source::port::SinkContext;
use shared::bus::Bus;
use shared::clock::IdSource as _;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::platform::accounts::read_platforms;
use shared::process::{Health, ShutdownSignal};
use shared::testing::nats::NatsServer;
use shared::testing::{ManualClock, SeededIds, connect_to, eventually};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::watermark::{SourceWatermark, watermark_key};
use tempfile::TempDir;

/// Time at which a test begins.
pub(crate) const START: UnixMillis = UnixMillis(1_700_000_000_000);

/// A server, and what its replicas share.
pub(crate) struct World {
    pub(crate) nats: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) doors: OpenDoors,
    folder: TempDir,
}

/// The base URLs of the replicas that run, by name: what a balancer before them knows. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenDoors(Arc<Mutex<BTreeMap<String, String>>>);

impl OpenDoors {
    /// The base URLs.
    pub(crate) fn bases(&self) -> Vec<String> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A running service.
pub(crate) struct Replica {
    pub(crate) health: Health,
    name: String,
    doors: OpenDoors,
    shutdown: ShutdownSignal,
    running: RunningAdapter,
}

impl World {
    pub(crate) async fn start() -> Self {
        let (nats, bus) = shared::testing::world().await;
        Self {
            nats,
            bus,
            clock: Arc::new(ManualClock::at(START)),
            doors: OpenDoors::default(),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Writes `token` into a file; the reference to it.
    pub(crate) fn secret(&self, token: &str) -> String {
        let path = self.folder.path().join(token.replace(':', "-"));
        std::fs::write(&path, token).expect("the token is written");
        format!("file:{}", path.display())
    }

    /// Starts replica `name` with the accounts of `channels`, the content of `channels.yaml`.
    pub(crate) async fn replica(&self, name: &str, channels: &str) -> Replica {
        self.replica_with(name, channels, "").await
    }

    /// As [`World::replica`], with the section `[adapter]` of `toml`.
    pub(crate) async fn replica_with(&self, name: &str, channels: &str, toml: &str) -> Replica {
        let accounts = read_platforms(channels).expect("sound accounts");
        let config = AdapterConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            data_dir: self.folder.path().join(name),
            ..toml::from_str(toml).expect("the section parses")
        };

        let (health, shutdown) = (Health::default(), ShutdownSignal::default());
        let around = ServiceContext {
            bus: connect_to(&self.nats.url(), name).await,
            clock: self.clock.clone(),
            // No two replicas make the same ids.
            ids: Arc::new(SeededIds::new(name.bytes().map(u64::from).sum())),
            health: health.clone(),
            shutdown: shutdown.clone(),
            drain: Duration::from_secs(2),
            instance: name.to_owned(),
            telegram: accounts.telegram.accounts,
            discord: accounts.discord.accounts,
            slack: accounts.slack.accounts,
        };

        let running = RunningAdapter::start(&config, around).await.expect("it starts");
        let base = format!("http://{}", running.address);
        self.doors.change(|open| drop(open.insert(name.to_owned(), base)));
        Replica {
            health,
            name: name.to_owned(),
            doors: self.doors.clone(),
            shutdown,
            running,
        }
    }

    /// What sources need that a test starts itself: positions and leases are kept here, and events go to the stream of
    /// `events`.
    pub(crate) fn sink_context(&self, events: &Self, health: &Health) -> SinkContext {
        let ids = Arc::new(SeededIds::new(1));
        let (publisher, _work) = SpoolPublisher::start(events.bus.clone(), self.clock.clone(), 8);
        let (media, files) = (AccountMedia::new(), AttachmentConfig::default());
        SinkContext {
            bus: self.bus.clone(),
            intake: EventIntake::to_stream(events.bus.clone(), publisher),
            pairings: PairingStore::new(self.bus.clone(), self.clock.clone(), ids.clone()),
            attachments: AttachmentFetcher::new(&self.bus, self.clock.clone(), media, &files),
            clock: self.clock.clone(),
            health: health.clone(),
            age_gate_ms: 86_400_000,
            run: ids.ulid(),
        }
    }

    /// The events of the stream, oldest first.
    pub(crate) async fn events(&self) -> Vec<Event> {
        stored_events(&self.bus).await
    }

    /// Waits until the stream has `count` events; all of them.
    pub(crate) async fn stored(&self, count: usize) -> Vec<Event> {
        eventually("the events are stored", async || self.events().await.len() >= count).await;
        let events = self.events().await;
        assert_eq!(events.len(), count, "{events:#?}");
        events
    }

    /// The dead letters, oldest first.
    pub(crate) async fn letters(&self) -> Vec<DeadLetter> {
        let stored = self.bus.read_history("DLQ", "nexus.dlq.>", 1, 100).await;
        let stored = stored.expect("the dead letters are read");
        stored.iter().map(|one| one.decode().expect("a letter")).collect()
    }

    pub(crate) async fn watermark(&self, channel: &str, account: &str) -> Option<SourceWatermark> {
        let kept = self.bus.kv::<SourceWatermark>("watermarks");
        let found = kept.get(&watermark_key(channel, account)).await.expect("asked");
        found.map(|entry| entry.value)
    }
}

/// The events of the stream, oldest first; empty while it cannot be asked.
pub(crate) async fn stored_events(bus: &Bus) -> Vec<Event> {
    let (mut events, mut from) = (Vec::new(), 1);
    loop {
        let page = bus.read_history("EVENTS", "nexus.ev.>", from, 1_000).await;
        let page = page.unwrap_or_default();
        let Some(last) = page.last() else { return events };
        from = last.sequence + 1;
        events.extend(page.iter().map(|stored| stored.decode::<Event>().expect("an event")));
    }
}

impl Replica {
    /// The base URL of the gateway.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.running.address)
    }

    /// Stops the service as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.shutdown.trigger();
        self.running.wait_finished().await.expect("it ends in order");
        self.doors.change(|open| drop(open.remove(&self.name)));
    }

    /// Waits until the part `part` says `words`.
    pub(crate) async fn says(&self, part: &str, words: &str) {
        says(&self.health, part, words).await;
    }
}

/// Waits until the part `part` of `health` says `words`.
pub(crate) async fn says(health: &Health, part: &str, words: &str) {
    eventually(&format!("{part} says {words}"), async || {
        let parts = health.readiness().parts;
        parts.get(part).is_some_and(|part| part.detail.contains(words))
    })
    .await;
}
