//! The real process, killed where it hurts.

use std::path::Path;
use std::process::{Command, Stdio};

use adapter_svc::source::webhook::signature::sha256_hex;
use serde_json::{Value, json};
use shared::testing::nats::NatsServer;
use shared::testing::{TestProcess, eventually};
use tempfile::TempDir;

use crate::page::{KEY, Page, visitor};
use crate::world::{TOKEN, connect, stored};

/// The service as a process of its own.
struct Process {
    child: TestProcess,
    base: String,
}

impl Process {
    async fn start(nats: &NatsServer, folder: &TempDir) -> Self {
        let run = folder.path().join("run");
        let _ = std::fs::remove_dir_all(&run);
        std::fs::create_dir_all(&run).expect("a folder");
        let token = format!(
            "[trust]\ncluster_key = \"file:{}/../shared/src/testing/cluster.key\"\n\n[[adapter.http.tokens]]\nname = \"crm-1\"\nsha256 = \"{}\"\nsource = \"crm\"\nchannels = [\"crm\"]\n",
            env!("CARGO_MANIFEST_DIR"),
            sha256_hex(&[TOKEN.as_bytes()])
        );

        std::fs::write(folder.path().join("nexus.toml"), token).expect("a configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_adapter-svc"));
        command
            .current_dir(folder.path())
            .env("NEXUS_RUN_DIR", &run)
            .env("NEXUS__NATS__SERVERS", format!("[\"{}\"]", nats.url()))
            .env("NEXUS__ADAPTER__LISTEN", "127.0.0.1:0")
            .env("NEXUS__ADAPTER__DATA_DIR", folder.path().join("spool"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("log")).expect("a log"));

        let mut process = Self {
            child: TestProcess::start(&mut command),
            base: String::new(),
        };
        eventually("the process listens", async || {
            let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            assert!(process.child.ended().is_none(), "it ended: {}", log());

            match announced(&run) {
                Some(address) => {
                    process.base = format!("http://{address}");
                    true
                }
                None => false,
            }
        })
        .await;

        process
    }
}

/// Where the process in `run` says that its gateway is.
fn announced(run: &Path) -> Option<String> {
    let entry = std::fs::read_dir(run).ok()?.find_map(Result::ok)?;
    let said: Value = serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok()?;
    said["gateway"].as_str().map(str::to_owned)
}

async fn post(client: &reqwest::Client, base: &str, first: u64, count: u64) -> bool {
    let event = |n| json!({ "id": format!("crm:{n}"), "timestamp": n, "channel": "crm", "peer": { "kind": "dm", "id": format!("p{}", n % 7) } });
    let events: Vec<Value> = (first..first + count).map(event).collect();
    let request = client
        .post(format!("{base}/v1/events"))
        .bearer_auth(TOKEN)
        .header("content-type", "application/json");
    match request.body(json!(events).to_string()).send().await {
        Ok(response) => response.status().is_success(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn killed_between_sync_and_publish_it_publishes_at_the_next_start_once() {
    let (mut nats, folder) = (NatsServer::start().await, tempfile::tempdir().expect("a folder"));
    let bus = connect(&nats).await;
    let client = reqwest::Client::builder().build().expect("a client");
    let mut process = Process::start(&nats, &folder).await;

    // Without a stream to go to, what is accepted stays between sync and publish.
    nats.kill9();
    assert!(post(&client, &process.base, 0, 40).await);

    process.child.kill();
    nats.restart().await;
    let mut process = Process::start(&nats, &folder).await;
    stored(&bus, 40).await;
    process.child.kill();
    let process = Process::start(&nats, &folder).await;

    assert!(post(&client, &process.base, 40, 1).await);

    let messages = stored(&bus, 41).await;
    let mut last = [None; 7];
    for message in messages {
        let event: shared::model::event::Event = message.decode().expect("an event");
        let (number, key) = (
            event.timestamp.0,
            usize::try_from(event.timestamp.0 % 7).expect("small"),
        );

        assert!(last[key] < Some(number), "order of conversation {key}");

        last[key] = Some(number);
    }
}

#[tokio::test]
async fn started_while_nats_is_away_it_takes_events_and_publishes_them_later() {
    let (mut nats, folder) = (NatsServer::start().await, tempfile::tempdir().expect("a folder"));
    nats.kill9();
    let client = reqwest::Client::builder().build().expect("a client");
    let mut process = Process::start(&nats, &folder).await;

    assert!(post(&client, &process.base, 0, 20).await);

    // Killed before any server ever answered: what it had answered is on the disk.
    process.child.kill();
    let process = Process::start(&nats, &folder).await;
    assert!(post(&client, &process.base, 20, 20).await);

    nats.restart().await;
    let bus = connect(&nats).await;
    stored(&bus, 40).await;

    assert!(post(&client, &process.base, 40, 1).await);

    stored(&bus, 41).await;
}

#[tokio::test]
async fn a_message_that_began_a_conversation_is_in_it_after_a_kill_and_once() {
    let (mut nats, folder) = (NatsServer::start().await, tempfile::tempdir().expect("a folder"));
    let bus = connect(&nats).await;
    let message = |id: &str| json!({ "type": "message", "id": id, "text": "hi", "thread": "7f" }).to_string();
    let hello = json!({ "type": "hello", "key": KEY, "thread": "7f" });
    let mut process = Process::start(&nats, &folder).await;

    // Without a stream to go to, what was acknowledged is on the disk alone.
    nats.kill9();
    let mut page = Page::hello(&process.base, hello.clone()).await;
    page.hear("ready").await;
    page.hear("history").await;
    page.say(message("m1")).await;
    page.hear("stored").await;
    process.child.kill();
    nats.restart().await;

    // The page comes back, and sends again what it knows no answer to.
    let process = Process::start(&nats, &folder).await;
    let mut page = Page::hello(&process.base, hello).await;
    page.hear("ready").await;
    page.hear("history").await;
    for id in ["m1", "m2"] {
        page.say(message(id)).await;
        page.hear("stored").await;
    }

    let events: Vec<shared::model::event::Event> = stored(&bus, 2)
        .await
        .iter()
        .map(|stored| stored.decode().expect("an event"))
        .collect();
    assert!(
        events.iter().all(|event| event.thread_id.as_deref() == Some("7f")),
        "{events:?}"
    );
    assert_eq!(events[0].id.as_str(), format!("webchat:default/{}/m1", visitor()));
}

#[tokio::test]
async fn killed_at_any_instant_under_load_it_loses_nothing() {
    const ROUNDS: u64 = 8;
    const BATCH: u64 = 20;

    let (nats, folder) = (NatsServer::start().await, tempfile::tempdir().expect("a folder"));
    let bus = connect(&nats).await;
    let client = reqwest::Client::builder().build().expect("a client");

    let mut next = 0;
    for round in 0..ROUNDS {
        let mut process = Process::start(&nats, &folder).await;
        let base = process.base.clone();

        // A batch that was not answered is posted again to the next process, as any client does.
        for _ in 0..=round {
            assert!(post(&client, &base, next, BATCH).await);
            next += BATCH;
        }

        let late = tokio::spawn({
            let client = client.clone();
            async move { post(&client, &base, next, BATCH).await }
        });
        tokio::task::yield_now().await;
        process.child.kill();

        if late.await.expect("it ends") {
            next += BATCH;
        }
    }

    let process = Process::start(&nats, &folder).await;
    assert!(post(&client, &process.base, next, 1).await);

    eventually("the spool is drained", async || {
        let messages = bus
            .read_history("EVENTS", "nexus.ev.>", 1, 1_000)
            .await
            .unwrap_or_default();
        let ids: std::collections::BTreeSet<String> = messages
            .iter()
            .map(|m| m.headers.get("Nexus-Event").unwrap_or_default().to_owned())
            .collect();

        assert_eq!(ids.len(), messages.len(), "an event is stored twice");
        (0..=next).all(|n| ids.contains(&format!("crm:{n}")))
    })
    .await;
}
