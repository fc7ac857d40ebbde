//! The real process, killed and replaced.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::testing::nats::NatsServer;
use shared::testing::{TestProcess, eventually};
use tempfile::TempDir;

use crate::bot_api::BotApi;
use crate::telegram::{MAIN, message};
use crate::world::stored_events;

/// Number of a log's lines that a failed test shows.
const LOG_LINES: usize = 60;

/// Starts the service `name` with one account on the stand-in.
fn start(nats: &NatsServer, api: &BotApi, folder: &TempDir, name: &str) -> TestProcess {
    let base = &api.base;
    let channels =
        format!("telegram: {{accounts: {{main: {{token: 'file:token', base_url: '{base}', direct: open}}}}}}\n");
    start_service(nats, &channels, MAIN, folder, name)
}

/// Starts the service `name` with the accounts of `channels`, the content of `channels.yaml`, and `token` in the file
/// `token`.
pub(crate) fn start_service(
    nats: &NatsServer,
    channels: &str,
    token: &str,
    folder: &TempDir,
    name: &str,
) -> TestProcess {
    start_service_with(nats, (channels, ""), token, folder, name)
}

/// As [`start_service`], with `more` in the file `nexus.toml`.
pub(crate) fn start_service_with(
    nats: &NatsServer,
    (channels, more): (&str, &str),
    token: &str,
    folder: &TempDir,
    name: &str,
) -> TestProcess {
    let here = folder.path().join(name);
    std::fs::create_dir_all(here.join("run")).expect("a folder");
    std::fs::write(here.join("token"), token).expect("a token");
    std::fs::write(here.join("channels.yaml"), channels).expect("a file");
    let key = format!("{}/../shared/src/testing/cluster.key", env!("CARGO_MANIFEST_DIR"));
    let text = format!("[trust]\ncluster_key = \"file:{key}\"\n\n[files]\nchannels = \"channels.yaml\"\n\n{more}");
    std::fs::write(here.join("nexus.toml"), text).expect("a configuration");

    let mut command = Command::new(env!("CARGO_BIN_EXE_adapter-svc"));
    command
        .current_dir(&here)
        .env("NEXUS_RUN_DIR", here.join("run"))
        .env("NEXUS__NATS__SERVERS", format!("[\"{}\"]", nats.url()))
        .env("NEXUS__ADAPTER__LISTEN", "127.0.0.1:0")
        .env("NEXUS__ADAPTER__DATA_DIR", here.join("spool"))
        .env("NEXUS__ADAPTER__BACKFILL_CALLS_PER_MINUTE", "60000")
        .env("NEXUS_INSTANCE", name)
        .stdout(Stdio::null())
        .stderr(open_log(&here.join("log")));
    TestProcess::start(&mut command)
}

/// Opens the log at `path`, behind what former processes wrote.
fn open_log(path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).open(path).expect("a log")
}

/// The last lines that processes of the service `name` have logged.
pub(crate) fn log_tail(folder: &TempDir, name: &str) -> String {
    let log = std::fs::read_to_string(folder.path().join(name).join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// Ids of the events of the stream.
pub(crate) async fn stored(bus: &Bus) -> Vec<String> {
    let events = stored_events(bus).await;
    events.iter().map(|event| event.id.to_string()).collect()
}

/// Adds messages `from` to `to`, which are sent now.
fn say(api: &BotApi, from: i64, to: i64) {
    (from..=to).for_each(|number| api.add(MAIN, "message", &message(number, SystemClock.now())));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_it_loses_and_doubles_nothing() {
    let (nats, bus) = shared::testing::world().await;
    let folder = tempfile::tempdir().expect("a folder");
    let api = BotApi::start(bus.clone(), Arc::new(SystemClock)).await;

    let mut said = 0;
    for round in 0..6_usize {
        let mut process = start(&nats, &api, &folder, "adapter-svc-0");
        // Killed after it has stored some, or confirmed some, or has only asked.
        let (polls, confirmed, count) = (api.polls(MAIN), api.confirmed(MAIN), stored(&bus).await.len());
        say(&api, said + 1, said + 30);
        said += 30;
        eventually("it is at work", async || match round % 3 {
            0 => stored(&bus).await.len() > count,
            1 => api.confirmed(MAIN) > confirmed,
            _ => api.polls(MAIN) > polls,
        })
        .await;
        process.kill();
    }

    let process = start(&nats, &api, &folder, "adapter-svc-0");
    let all = usize::try_from(said).expect("small");
    eventually("everything is confirmed", async || api.confirmed(MAIN) == all).await;
    let ids = stored(&bus).await;
    let expected: BTreeSet<String> = (1..=said)
        .map(|n| format!("telegram:main/{}/{n}", 100 + n % 7))
        .collect();
    assert_eq!(ids.len(), all, "each once");
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!((api.early(MAIN), api.most_polling(MAIN)), (Vec::new(), 1));
    drop(process);
}
