//! Real processes to which platforms post, killed and replaced while posts come.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::testing::nats::NatsServer;
use shared::testing::{TestProcess, eventually, eventually_within};
use tempfile::TempDir;

use crate::bot_api::BotApi;
use crate::door_forms::{SlackPosts, TelegramPosts, WEBHOOK_SECRET, WebhookPosts};
use crate::posts::{PostForm, Poster};
use crate::process::{log_tail, start_service_with, stored};
use crate::web_api::WebApi;
use crate::{telegram_webhook, web_api};

const NAMES: [&str; 2] = ["adapter-svc-0", "adapter-svc-1"];

/// Messages that are taken in a round before the replica is killed whose turn it is: at its start, and at other points.
const TAKEN_BEFORE_KILLS: [usize; 8] = [0, 1, 13, 4, 0, 22, 2, 9];

/// Messages of a round.
const ROUND: i64 = 25;

/// The base URLs of the processes with folders in `folder` that have said where they listen. One that was killed is among
/// them until the next one says it.
fn announced(folder: &Path) -> Vec<String> {
    let address = |name: &str| {
        let path: PathBuf = folder.join(name).join("run").join(format!("adapter-svc-{name}.json"));
        let said: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(format!("http://{}", said["gateway"].as_str()?))
    };
    NAMES.iter().filter_map(|name| address(name)).collect()
}

/// Posts in the form `form` to two processes that `start` starts, of which one is killed at a time.
async fn check_killed(form: Arc<dyn PostForm>, bus: &Bus, folder: &TempDir, start: impl Fn(&str) -> TestProcess) {
    let place = folder.path().to_owned();
    let poster = Poster::start(form, Arc::new(SystemClock), None, move || announced(&place));
    poster.repeat();
    let mut processes = NAMES.map(&start);
    let mut expected = BTreeSet::new();

    for (round, before_kill) in TAKEN_BEFORE_KILLS.into_iter().enumerate() {
        let (taken, first) = (poster.taken(), i64::try_from(expected.len()).expect("small") + 1);
        for number in first..first + ROUND {
            expected.insert(poster.say(number, SystemClock.now()));
        }
        eventually("enough is taken", async || poster.taken() >= taken + before_kill).await;
        let turn = round % NAMES.len();
        processes[turn].kill();
        processes[turn] = start(NAMES[turn]);
    }

    eventually("everything is taken", async || poster.is_done(expected.len())).await;
    eventually_within("everything is stored", Duration::from_secs(120), async || {
        let ids: BTreeSet<String> = stored(bus).await.into_iter().collect();
        let missing: Vec<&String> = expected.difference(&ids).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let logs = NAMES.map(|name| log_tail(folder, name)).join("\n");
        Err(format!("not stored: {missing:?}\n{logs}"))
    })
    .await;
    let ids = stored(bus).await.into_iter().filter(|id| !id.starts_with("gap:"));
    let ids: Vec<String> = ids.collect();
    assert_eq!(ids.len(), expected.len(), "each once");
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), expected);
    drop(processes);
}

/// Writes `secret` into a file of `folder`; the reference to it.
fn write_secret(folder: &TempDir, secret: &str) -> String {
    let path = folder.path().join("secret");
    std::fs::write(&path, secret).expect("a secret");
    format!("file:{}", path.display())
}

async fn begin() -> (NatsServer, Bus, TempDir) {
    let (nats, bus) = shared::testing::world().await;
    (nats, bus, tempfile::tempdir().expect("a folder"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_telegram_posts_is_stored_once_whichever_process_is_killed() {
    let (nats, bus, folder) = begin().await;
    let api = BotApi::start(bus.clone(), Arc::new(SystemClock)).await;
    let (base, secret) = (&api.base, write_secret(&folder, telegram_webhook::SECRET));
    let channels = format!(
        "telegram: {{accounts: {{main: {{token: 'file:token', base_url: '{base}', receive: webhook, direct: open, \
         webhook_url: 'https://nexus.example.com', webhook_secret: '{secret}'}}}}}}\n"
    );
    let start = |name: &str| start_service_with(&nats, (&channels, ""), telegram_webhook::TOKEN, &folder, name);
    check_killed(Arc::new(TelegramPosts), &bus, &folder, start).await;
    assert_eq!(api.polls(telegram_webhook::TOKEN), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_slack_posts_is_stored_once_whichever_process_is_killed() {
    let (nats, bus, folder) = begin().await;
    let api = WebApi::start().await;
    let (base, secret) = (&api.base, write_secret(&folder, web_api::SECRET));
    let channels = format!(
        "slack: {{accounts: {{main: {{token: 'file:token', signing_secret: '{secret}', base_url: '{base}', \
         direct: open}}}}}}\n"
    );
    let start = |name: &str| start_service_with(&nats, (&channels, ""), "xoxb-main-secret", &folder, name);
    check_killed(Arc::new(SlackPosts), &bus, &folder, start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_webhook_posts_is_stored_once_whichever_process_is_killed() {
    let (nats, bus, folder) = begin().await;
    let section = WebhookPosts::section("adapter.", &write_secret(&folder, WEBHOOK_SECRET));
    let start = |name: &str| start_service_with(&nats, ("", &section), "no token", &folder, name);
    check_killed(Arc::new(WebhookPosts), &bus, &folder, start).await;
}
