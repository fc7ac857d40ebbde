//! The replica that reads an account is killed: another one reads it soon, and two never do.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::time::UnixMillis;
use shared::testing::{TestProcess, eventually, eventually_some};
use shared::wire::session_mark::LeaseRecord;
use shared::wire::watermark::SourceWatermark;
use tempfile::TempDir;

use crate::bot_api::BotApi;
use crate::discord_api::DiscordApi;
use crate::process::{log_tail, start_service, stored};
use crate::socket_api::SocketApi;
use crate::{discord, telegram};

/// Time within which another replica has the account, as the pages of the platforms promise.
const WITHIN: Duration = Duration::from_secs(5);

/// What a machine on which many tests run at once may take beyond it.
const SLOWNESS: Duration = Duration::from_secs(5);

const FIRST: &str = "adapter-svc-0";
const SECOND: &str = "adapter-svc-1";
const SLACK_TOKEN: &str = "xoxb-main-secret";

/// A stand-in with the one account `main`.
trait HeldAccount {
    fn channel(&self) -> &'static str;
    /// Whether the account has what was written before it was read for the first time.
    fn has_earlier(&self) -> bool;
    /// Lets somebody write the message `number`.
    fn say(&self, number: i64);
    /// Number of messages that were confirmed.
    fn confirmed(&self) -> usize;
    /// How often a replica has polled, or connected.
    fn begun(&self) -> usize;
    /// The most replicas that read at a time.
    fn most_at_once(&self) -> usize;
}

/// The record `key` of KV `leases`, with the time at which the server stored it; `None` while there is none.
async fn find_lease(bus: &Bus, key: &str) -> Option<(LeaseRecord, UnixMillis)> {
    let subject = format!("$KV.leases.{key}");
    let found = bus.last_on_subject("KV_leases", &subject).await.ok()??;
    // The marker of one that ended is no record.
    let record = found.decode::<LeaseRecord>().ok()?;
    Some((record, found.published_at))
}

/// Waits until the replica `holder` holds the account of `api`; its session, and the server's time at which it was taken.
async fn held_by(bus: &Bus, api: &impl HeldAccount, holder: &str) -> (String, UnixMillis) {
    let key = format!("account.{}.main", api.channel());
    let (record, at) = eventually_some(&format!("{holder} holds the account"), async || {
        let found = find_lease(bus, &key).await;
        found.filter(|(record, _)| record.holder == holder)
    })
    .await;
    (record.session, at)
}

/// Waits until the messages 1 to `count` are confirmed.
async fn confirmed(api: &impl HeldAccount, count: usize) {
    eventually("the messages are confirmed", async || api.confirmed() >= count).await;
}

/// Lets two processes that `start` starts compete for the account of `api`, and kills the one that has it.
async fn check_takeover(bus: &Bus, api: &impl HeldAccount, folder: &TempDir, start: impl Fn(&str) -> TestProcess) {
    let mut first = start(FIRST);
    held_by(bus, api, FIRST).await;
    if !api.has_earlier() {
        let (kept, key) = (
            bus.kv::<SourceWatermark>("watermarks"),
            format!("{}.main", api.channel()),
        );
        let is_noted = async || kept.get(&key).await.is_ok_and(|found| found.is_some());
        eventually("it is noted from when on the account is read", is_noted).await;
    }
    api.say(1);
    confirmed(api, 1).await;

    let second = start(SECOND);
    eventually("the second replica waits", async || {
        log_tail(folder, SECOND).contains("ready")
    })
    .await;
    api.say(2);
    confirmed(api, 2).await;

    // By the server's clock: the session was refreshed at this time or later.
    let (session, _) = held_by(bus, api, FIRST).await;
    let (_, refreshed) = eventually_some("the session of the first one", async || {
        find_lease(bus, &format!("account.session.{session}")).await
    })
    .await;
    let begun = api.begun();
    first.kill();
    let killed = SystemClock.monotonic();
    let (_, taken) = held_by(bus, api, SECOND).await;
    eventually("the second replica reads", async || api.begun() > begun).await;
    let read = SystemClock.monotonic().saturating_duration_since(killed);

    let waited = Duration::from_millis(taken.since(refreshed).unsigned_abs());
    println!(
        "{}: taken {waited:?} after the last refresh, read {read:?} after the kill",
        api.channel()
    );
    assert!(waited <= WITHIN + SLOWNESS, "taken after {waited:?}");
    assert!(read <= WITHIN + SLOWNESS, "read after {read:?}");

    api.say(3);
    confirmed(api, 3).await;
    let messages = stored(bus).await.into_iter().filter(|id| !id.starts_with("gap:"));
    assert_eq!((messages.count(), api.most_at_once()), (3, 1));
    drop(second);
}

impl HeldAccount for BotApi {
    fn channel(&self) -> &'static str {
        "telegram"
    }

    fn has_earlier(&self) -> bool {
        true
    }

    fn say(&self, number: i64) {
        self.add(telegram::MAIN, "message", &telegram::message(number, SystemClock.now()));
    }

    fn confirmed(&self) -> usize {
        self.confirmed(telegram::MAIN)
    }

    fn begun(&self) -> usize {
        usize::try_from(self.polls(telegram::MAIN)).expect("small")
    }

    fn most_at_once(&self) -> usize {
        self.most_polling(telegram::MAIN)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_bot_that_is_polled() {
    let (nats, bus) = shared::testing::world().await;
    let folder = tempfile::tempdir().expect("a folder");
    let api = BotApi::start(bus.clone(), Arc::new(SystemClock)).await;
    let base = &api.base;
    let channels =
        format!("telegram: {{accounts: {{main: {{token: 'file:token', base_url: '{base}', direct: open}}}}}}\n");
    let start = |name: &str| start_service(&nats, &channels, telegram::MAIN, &folder, name);
    check_takeover(&bus, &api, &folder, start).await;
    assert_eq!(api.early(telegram::MAIN), Vec::<String>::new());
}

impl HeldAccount for DiscordApi {
    fn channel(&self) -> &'static str {
        "discord"
    }

    fn has_earlier(&self) -> bool {
        false
    }

    fn say(&self, number: i64) {
        self.say(discord::MAIN, number, SystemClock.now());
    }

    fn confirmed(&self) -> usize {
        self.confirmed(discord::MAIN)
    }

    fn begun(&self) -> usize {
        self.begun(discord::MAIN).len()
    }

    fn most_at_once(&self) -> usize {
        self.most_open(discord::MAIN)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_bot_with_a_gateway() {
    let (nats, bus) = shared::testing::world().await;
    let folder = tempfile::tempdir().expect("a folder");
    let api = DiscordApi::start(bus.clone(), Arc::new(SystemClock)).await;
    let (address, open) = (&api.address, discord::OPEN);
    let channels =
        format!("discord: {{accounts: {{main: {{token: 'file:token', base_url: 'http://{address}/api', {open}}}}}}}\n");
    let start = |name: &str| start_service(&nats, &channels, discord::MAIN, &folder, name);
    check_takeover(&bus, &api, &folder, start).await;
    assert_eq!(api.early(discord::MAIN), Vec::<String>::new());
    let begun = api.begun(discord::MAIN);
    let identified = begun.iter().filter(|(_, how)| *how == "identify").count();
    assert_eq!(identified, 1, "the session goes on elsewhere: {begun:?}");
}

impl HeldAccount for SocketApi {
    fn channel(&self) -> &'static str {
        "slack"
    }

    fn has_earlier(&self) -> bool {
        true
    }

    fn say(&self, number: i64) {
        let stamp = format!("{}.{number:06}", SystemClock.now().0 / 1_000);
        self.bring(&json!({"type": "message", "channel": "D1", "user": "U5", "text": "hello", "ts": stamp}));
    }

    fn confirmed(&self) -> usize {
        self.confirmed()
    }

    fn begun(&self) -> usize {
        self.opened()
    }

    fn most_at_once(&self) -> usize {
        usize::try_from(self.most_connections()).expect("small")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_app_with_a_socket() {
    let (nats, bus) = shared::testing::world().await;
    let folder = tempfile::tempdir().expect("a folder");
    let app_token = folder.path().join("app-token");
    std::fs::write(&app_token, "xapp-main-secret").expect("a token");
    let api = SocketApi::start(bus.clone()).await;
    let (base, app) = (&api.base, app_token.display());
    let channels = format!(
        "slack: {{accounts: {{main: {{token: 'file:token', app_token: 'file:{app}', receive: socket, \
         base_url: '{base}', direct: open}}}}}}\n"
    );
    let start = |name: &str| start_service(&nats, &channels, SLACK_TOKEN, &folder, name);
    check_takeover(&bus, &api, &folder, start).await;
    assert_eq!(api.early(), Vec::<String>::new());
}
