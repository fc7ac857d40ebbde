use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::*;
use crate::clock::Clock;
use crate::process::status::announced_replicas;
use crate::testing::nats::NatsServer;
use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::buckets;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProbeConfig {
    behaviour: String,
}

/// A service that drains at once, never drains, fails or panics, according to its configuration.
struct Probe;

impl Service for Probe {
    const NAME: &'static str = "probe-svc";
    const SECTION: &'static str = "scheduler";
    type Config = ProbeConfig;

    fn check(config: &ProbeConfig) -> Vec<String> {
        let known = ["", "hang", "fail", "panic"].contains(&config.behaviour.as_str());
        if known {
            Vec::new()
        } else {
            vec!["behaviour: expected hang, fail or panic".to_owned()]
        }
    }

    async fn serve(shell: ServiceShell<ProbeConfig>) -> anyhow::Result<()> {
        assert_ne!(shell.config.behaviour, "panic", "as configured");
        anyhow::ensure!(shell.config.behaviour != "fail", "as configured");
        shell.announce_address("gateway", ([127, 0, 0, 1], 9).into());
        shell.shutdown.requested().await;
        if shell.config.behaviour == "hang" {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// Longest time that a probe may take for anything; most of it is for creating the topology.
const DEADLINE: Duration = Duration::from_secs(60);

struct Running {
    directory: tempfile::TempDir,
    stop: Arc<Notify>,
    exit: Option<tokio::task::JoinHandle<ServiceExit>>,
}

impl Drop for Running {
    /// Lets the probe of a failed test end.
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// Starts a probe like a process of its own, except for the signals.
fn start(url: &str, behaviour: &str) -> Running {
    // Only the probe that hangs is meant to run out of time.
    let drain_timeout_ms = if behaviour == "hang" { 500 } else { 60_000 };
    start_draining(url, behaviour, drain_timeout_ms)
}

fn start_draining(url: &str, behaviour: &str, drain_timeout_ms: u64) -> Running {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let text = format!(
        "{}[nats]\nservers = ['{url}']\n[telemetry]\ndrain_timeout_ms = {drain_timeout_ms}\n[scheduler]\nbehaviour = '{behaviour}'\n",
        crate::testing::trust_section()
    );

    let variables = [
        ("NEXUS_RUN_DIR", directory.path().to_str().expect("UTF-8")),
        ("NEXUS_INSTANCE", "p1"),
    ];
    let environment: ConfigEnvironment = variables.into_iter().collect();
    let document = ConfigDocument::parse(Path::new("nexus.toml"), &text, &environment);
    let prepared = prepare_service::<Probe>(&document, &environment).expect("a sound configuration");

    let stop = Arc::new(Notify::new());
    let asked = Arc::clone(&stop);
    let local = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(run_until::<Probe>(prepared, async || asked.notified().await))
    };

    Running {
        directory,
        stop,
        exit: Some(tokio::task::spawn_blocking(local)),
    }
}

impl Running {
    fn announced(&self) -> Option<Value> {
        let path = self.directory.path().join("probe-svc-p1.json");
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    async fn page(&self, path: &str) -> Option<String> {
        let address = self.announced()?.get("http")?.as_str()?.to_owned();
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
            .await
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    async fn shows(&self, path: &str, status: &str, text: &str) {
        let begun = SystemClock.monotonic();
        loop {
            let page = self.page(path).await.unwrap_or_default();
            if page.starts_with(&format!("HTTP/1.0 {status}")) && page.contains(text) {
                return;
            }
            let waited = SystemClock.monotonic().duration_since(begun);

            assert!(waited < DEADLINE, "{path} shows {page}, not {status} with {text}");

            pause(Duration::from_millis(5)).await;
        }
    }

    async fn ends(mut self) -> ServiceExit {
        let exit = self.exit.take().expect("it was not asked before");
        tokio::time::timeout(DEADLINE, exit)
            .await
            .expect("it ends")
            .expect("it does not panic")
    }
}

#[tokio::test]
async fn a_service_is_served_and_stopped_in_order() {
    let server = NatsServer::start().await;
    let running = start(&server.url(), "");
    running.shows("/readyz", "200", "\"ready\":true").await;
    running.shows("/livez", "200", "alive").await;
    running.shows("/metrics", "200", "nexus_build_info").await;
    let announced = running.announced().expect("announced");

    assert_eq!(
        (announced["gateway"].as_str(), announced["instance"].as_str()),
        (Some("127.0.0.1:9"), Some("p1"))
    );

    running.stop.notify_one();
    let directory = running.directory.path().to_path_buf();
    assert_eq!(running.ends().await, ServiceExit::Clean);
    assert!(!directory.join("probe-svc-p1.json").exists());
}

#[tokio::test]
async fn it_waits_for_nats_alive_but_not_ready_and_can_be_stopped_meanwhile() {
    let mut server = NatsServer::start().await;
    server.kill9();

    let (waiting, stopped) = (start(&server.url(), ""), start(&server.url(), ""));
    for running in [&waiting, &stopped] {
        running.shows("/livez", "200", "alive").await;
        running.shows("/readyz", "503", "cannot connect to NATS").await;
    }

    stopped.stop.notify_one();
    assert_eq!(stopped.ends().await, ServiceExit::Clean);

    server.restart().await;
    waiting.shows("/readyz", "200", "connected, durability process").await;
    server.kill9();
    waiting.shows("/readyz", "503", "disconnected").await;
    waiting.stop.notify_one();

    assert_eq!(waiting.ends().await, ServiceExit::Clean);
}

#[test]
fn all_faults_of_all_its_sections_are_told() {
    let text = "[nats]\nreplicas = 2\n[scheduler]\nbehaviour = 'x'\n[hooks]\nnot = 'ours'\n[other]\n";
    let environment: ConfigEnvironment = [("NEXUS_INSTANCE", "a b")].into_iter().collect();
    let document = ConfigDocument::parse(Path::new("nexus.toml"), text, &environment);
    let faults = prepare_service::<Probe>(&document, &environment).expect_err("five faults");
    let keys: Vec<_> = faults
        .iter()
        .map(|fault| (fault.source.as_str(), fault.key.as_str()))
        .collect();

    let file = "nexus.toml";
    assert_eq!(
        keys,
        [
            (file, "other"),
            (file, "nats.replicas"),
            (file, "trust.cluster_key"),
            (file, "scheduler.behaviour"),
            ("NEXUS_INSTANCE", "")
        ]
    );
}

#[tokio::test]
async fn a_process_says_how_it_ended() {
    let server = NatsServer::start().await;
    for behaviour in ["fail", "panic"] {
        assert_eq!(
            start(&server.url(), behaviour).ends().await,
            ServiceExit::Failed,
            "{behaviour}"
        );
    }

    let overdue = start(&server.url(), "hang");
    overdue.shows("/readyz", "200", "\"ready\":true").await;
    overdue.stop.notify_one();

    assert_eq!(overdue.ends().await, ServiceExit::DrainTimeout);

    let twice = start_draining(&server.url(), "hang", 3_600_000);
    twice.shows("/readyz", "200", "\"ready\":true").await;
    twice.stop.notify_one();
    twice.shows("/readyz", "503", "draining").await;
    twice.stop.notify_one();

    assert_eq!(twice.ends().await, ServiceExit::DrainTimeout);
}

#[tokio::test]
async fn a_service_that_ends_is_not_awaited_on_the_bus_however_it_ended() {
    let (server, bus) = crate::testing::world().await;
    for (behaviour, expected) in [
        ("", ServiceExit::Clean),
        ("fail", ServiceExit::Failed),
        ("panic", ServiceExit::Failed),
        ("hang", ServiceExit::DrainTimeout),
    ] {
        let running = start(&server.url(), behaviour);
        if expected != ServiceExit::Failed {
            let begun = SystemClock.monotonic();
            while announced_replicas(&bus).await.expect("asked").is_empty() {
                let waited = SystemClock.monotonic().duration_since(begun);
                assert!(waited < DEADLINE, "{behaviour}: it is not announced");
                pause(Duration::from_millis(5)).await;
            }
            running.shows("/readyz", "200", "\"ready\":true").await;
            running.stop.notify_one();
        }

        assert_eq!(running.ends().await, expected, "{behaviour}");
        let announced = announced_replicas(&bus).await.expect("asked");
        assert!(announced.is_empty(), "{behaviour}: {announced:?}");

        // A failed service may end before it is announced: its key was deleted after that.
        let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
        assert_eq!(
            leases.get("replica.probe-svc.p1").await.expect("asked"),
            None,
            "{behaviour}"
        );
    }
}
