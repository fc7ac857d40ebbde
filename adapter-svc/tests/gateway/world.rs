//! A running service with a server, a clock and a directory of its own.

use std::sync::Arc;
use std::time::Duration;

use adapter_svc::AdapterConfig;
use adapter_svc::service::{RunningAdapter, ServiceContext};
use adapter_svc::source::events::access::TokenConfig;
use adapter_svc::source::webhook::signature::sha256_hex;
use serde_json::Value;
use shared::bus::{Bus, StoredMessage};
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::process::{Health, ShutdownSignal};
use shared::testing::nats::NatsServer;
use shared::testing::{ManualClock, SeededIds, eventually};
use shared::wire::topology::{Topology, topology};
use tempfile::TempDir;

/// How long a condition may take to come true.
const DEADLINE: Duration = Duration::from_secs(60);

/// The token of source `crm` in every world, for channels `crm` and `cloudevents`.
pub(crate) const TOKEN: &str = "the token of crm in the tests";

/// The service and what it stands in.
pub(crate) struct World {
    pub(crate) nats: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) health: Health,
    pub(crate) base: String,
    pub(crate) folder: TempDir,
    pub(crate) client: reqwest::Client,
    shutdown: ShutdownSignal,
    running: RunningAdapter,
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: Value,
}

impl Answer {
    /// `error.code`.
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

impl World {
    /// Starts the service with the section `[adapter]` of `toml`, on a port and in a directory of its own. `{secret}`
    /// in it becomes the path of a folder where [`secret`] puts secrets.
    pub(crate) async fn start(toml: &str) -> Self {
        Self::with(NatsServer::start().await, tempfile::tempdir().expect("a folder"), toml).await
    }

    /// As [`World::start`], with a server and a folder that are there already.
    pub(crate) async fn with(nats: NatsServer, folder: TempDir, toml: &str) -> Self {
        let bus = connect(&nats).await;
        let clock = Arc::new(ManualClock::at(UnixMillis(1_700_000_000_000)));
        let (health, shutdown) = (Health::default(), ShutdownSignal::default());
        let mut config: AdapterConfig = toml::from_str(toml).expect("the section parses");
        config.listen = ([127, 0, 0, 1], 0).into();
        config.data_dir = folder.path().join("spool");

        config.http.tokens.push(TokenConfig {
            name: "crm-1".to_owned(),
            sha256: sha256_hex(&[TOKEN.as_bytes()]),
            source: "crm".to_owned(),
            channels: vec!["crm".to_owned(), "cloudevents".to_owned()],
            persons: Vec::new(),
        });

        assert_eq!(config.find_faults(), Vec::<String>::new());

        let around = ServiceContext {
            bus: bus.clone(),
            clock: clock.clone(),
            ids: Arc::new(SeededIds::new(7)),
            health: health.clone(),
            shutdown: shutdown.clone(),
            drain: Duration::from_secs(2),
            instance: "adapter-svc-0".to_owned(),
            telegram: std::collections::BTreeMap::new(),
            discord: std::collections::BTreeMap::new(),
            slack: std::collections::BTreeMap::new(),
        };

        let running = RunningAdapter::start(&config, around).await.expect("it starts");
        let base = format!("http://{}", running.address);
        let client = reqwest::Client::builder().timeout(DEADLINE).build().expect("a client");

        Self {
            nats,
            bus,
            clock,
            health,
            base,
            folder,
            client,
            shutdown,
            running,
        }
    }

    /// Stops the service as SIGTERM does.
    pub(crate) async fn stop(self) -> (NatsServer, TempDir) {
        self.shutdown.trigger();
        self.running.wait_finished().await.expect("it ends in order");
        (self.nats, self.folder)
    }

    /// Posts with the token of source `crm`, unless `headers` say another.
    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
        let mut request = self.client.post(format!("{}{path}", self.base)).body(body);
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            request = request.bearer_auth(TOKEN);
        }
        self.send(request, headers).await
    }

    /// Posts without any token.
    pub(crate) async fn post_open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let request = self.client.post(format!("{}{path}", self.base)).body(body);
        self.send(request, headers).await
    }

    async fn send(&self, mut request: reqwest::RequestBuilder, headers: &[(&str, &str)]) -> Answer {
        for (name, value) in headers {
            request = request.header(*name, *value);
        }

        let response = request.send().await.expect("an answer");
        let status = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .map(|value| value.to_str().expect("text").to_owned());

        let body = serde_json::from_slice(&response.bytes().await.expect("a body")).unwrap_or(Value::Null);
        Answer {
            status,
            retry_after,
            body,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let response = self
            .client
            .get(format!("{}{path}", self.base))
            .send()
            .await
            .expect("an answer");
        (response.status().as_u16(), response.text().await.expect("text"))
    }

    /// The last sequence of `EVENTS`.
    pub(crate) async fn last(&self) -> u64 {
        self.bus.stream_state("EVENTS").await.expect("a state").last
    }

    /// Waits until `EVENTS` holds `count` messages; all of them.
    pub(crate) async fn stored(&self, count: u64) -> Vec<StoredMessage> {
        stored(&self.bus, count).await
    }

    /// Waits until `EVENTS` holds `count` events; all of them.
    pub(crate) async fn events(&self, count: u64) -> Vec<Event> {
        self.stored(count)
            .await
            .iter()
            .map(|stored| stored.decode().expect("an event"))
            .collect()
    }
}

/// Writes `secret` into a file; the reference to it.
pub(crate) fn secret(folder: &TempDir, name: &str, secret: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, secret).expect("the secret is written");
    format!("file:{}", path.display())
}

/// A connection to `nats`, whose streams for events and dead letters are there.
pub(crate) async fn connect(nats: &NatsServer) -> Bus {
    let bus = shared::testing::connect_to(&nats.url(), "test").await;
    let mut streams = topology(1).streams;
    streams.retain(|stream| ["EVENTS", "DLQ", "KV_identities"].contains(&stream.name.as_str()));

    bus.ensure_topology(
        &Topology {
            streams,
            consumers: Vec::new(),
        },
        false,
    )
    .await
    .expect("the streams");

    bus
}

/// Waits until `EVENTS` holds `count` messages; all of them.
pub(crate) async fn stored(bus: &Bus, count: u64) -> Vec<StoredMessage> {
    eventually("the events are stored", async || {
        bus.stream_state("EVENTS")
            .await
            .is_ok_and(|state| state.messages >= count)
    })
    .await;

    let messages = bus
        .read_history("EVENTS", "nexus.ev.>", 1, 1_000)
        .await
        .expect("the messages");
    assert_eq!(messages.len() as u64, count);

    messages
}
