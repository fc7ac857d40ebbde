//! Files of messages: fetched from the platform, stored by their content, and what happens where that is not possible.

use std::collections::BTreeSet;
use std::sync::Arc;

use adapter_svc::attachments::note::FetchNote;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use shared::attachments::AttachmentStore;
use shared::clock::SystemClock;
use shared::model::event::{Attachment, AttachmentState, Event, EventDirection, RefusedAttachment};
use shared::testing::eventually;

use crate::bot_api::BotApi;
use crate::discord_api::{DiscordApi, snowflake};
use crate::file_shelf::FileFault;
use crate::process::start_service;
use crate::web_api::{Delivery, SECRET, WebApi};
use crate::world::{Replica, START, World, stored_events};

pub(crate) const TELEGRAM: &str = "77:main-secret";
pub(crate) const SLACK: &str = "xoxb-main-secret";
const DISCORD: &str = "77.main.secret";

/// A picture of one pixel.
pub(crate) const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";

/// Settings with which an event waits for its files for a short time only.
pub(crate) const SHORT: &str = "[attachments]\nwait_ms = 300\nmax_file_bytes = 1000\nmax_event_bytes = 2000\n";

fn hash(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

pub(crate) fn telegram_channels(world: &World, api: &BotApi) -> String {
    let (token, base) = (world.secret(TELEGRAM), &api.base);
    format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', direct: open}}}}}}")
}

/// The message `number` with the document `id`.
pub(crate) fn document(number: i64, id: &str, keys: &Value) -> Value {
    let mut file = json!({"file_id": id, "file_unique_id": format!("u{id}"), "mime_type": "image/png"});
    for (key, value) in keys.as_object().expect("an object") {
        file[key] = value.clone();
    }
    json!({"message_id": number, "date": START.0 / 1_000, "from": {"id": 5, "first_name": "Ann"},
           "chat": {"id": 5, "type": "private"}, "caption": "look", "document": file})
}

/// The one file of `event`.
fn file(event: &Event) -> &Attachment {
    assert_eq!(event.attachments.len(), 1, "{event:#?}");
    &event.attachments[0]
}

#[track_caller]
fn assert_stored(event: &Event, bytes: &[u8], mime_type: &str) {
    let (file, hash) = (file(event), hash(bytes));
    assert_eq!(file.stored_hash(), Some(hash.as_str()), "{file:#?}");
    let uri = format!("nexus-object:{hash}");
    assert_eq!(file.storage_uri.as_deref(), Some(uri.as_str()));
    assert_eq!(file.mime_type.as_deref(), Some(mime_type));
    assert_eq!(file.size_bytes, u64::try_from(bytes.len()).ok());
}

async fn load(world: &World, bytes: &[u8]) -> Option<Vec<u8>> {
    let store = AttachmentStore::new(&world.bus, Arc::new(SystemClock));
    store.load(&hash(bytes), 1 << 20).await.expect("asked")
}

pub(crate) async fn fetches(world: &World) -> usize {
    let kept = world.bus.kv::<FetchNote>("fetches").survey().await.expect("asked");
    kept.entries.len() + kept.unread.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_telegram_is_stored_before_its_event_and_once() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &telegram_channels(&world, &api)).await;

    api.files.put("one", PNG, FileFault::None);
    api.files.put("same", PNG, FileFault::None);
    api.add(
        TELEGRAM,
        "message",
        &document(1, "one", &json!({"file_size": PNG.len()})),
    );
    // Fetched one after the other: two at once leave pieces that are swept later.
    world.stored(1).await;
    api.add(
        TELEGRAM,
        "message",
        &document(2, "same", &json!({"mime_type": "video/mp4"})),
    );
    api.files.put("empty", b"", FileFault::None);
    api.add(TELEGRAM, "message", &document(3, "empty", &json!({})));

    let events = world.stored(3).await;
    // The content decides what the second one is.
    assert_stored(&events[0], PNG, "image/png");
    assert_stored(&events[1], PNG, "image/png");
    assert_stored(&events[2], b"", "application/octet-stream");
    assert!(events.iter().all(|event| event.content == "look"));
    assert_eq!(load(&world, PNG).await.as_deref(), Some(PNG));
    let objects = world.bus.stream_state("OBJ_attachments").await.expect("asked").messages;
    assert_eq!(objects, 3, "two descriptions, and the pieces of one");
    assert_eq!(fetches(&world).await, 0);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_file_holds_no_message_up_and_follows() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_channels(&world, &api);
    let replica = world.replica_with("adapter-svc-0", &channels, SHORT).await;

    api.files.put("slow", PNG, FileFault::Hangs);
    api.files.put("fast", b"words", FileFault::None);
    api.add(TELEGRAM, "message", &document(1, "slow", &json!({})));
    api.add(
        TELEGRAM,
        "message",
        &document(2, "fast", &json!({"mime_type": "text/plain"})),
    );
    let events = world.stored(2).await;
    assert_eq!(file(&events[0]).state, AttachmentState::Remote);
    assert_stored(&events[1], b"words", "text/plain");

    // The replica that was at it is gone; another one goes on.
    replica.stop().await;
    let replica = world.replica_with("adapter-svc-1", &channels, SHORT).await;
    api.files.set("slow", FileFault::None);
    let events = world.stored(3).await;
    let update = &events[2];
    assert_eq!((&update.id, update.direction), (&events[0].id, EventDirection::Updated));
    assert_eq!((update.content.as_str(), update.edited_at), ("look", None));
    assert_stored(update, PNG, "image/png");
    eventually("nothing is left to be fetched", async || fetches(&world).await == 0).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_strangers_are_not_fetched() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_channels(&world, &api).replace("direct: open", "direct: allowlist, allow: [6]");
    let replica = world.replica("adapter-svc-0", &channels).await;
    api.files.put("one", PNG, FileFault::None);
    api.add(TELEGRAM, "message", &document(1, "one", &json!({})));
    let events = world.stored(1).await;
    assert_eq!(file(&events[0]).state, AttachmentState::Remote);
    assert_eq!((api.files.asked("one"), fetches(&world).await), (0, 0));
    replica.stop().await;
}

/// A replica with an account on Slack whose direct messages are open.
pub(crate) async fn slack_replica(world: &World, api: &WebApi) -> Replica {
    let (token, secret, base) = (world.secret(SLACK), world.secret(SECRET), &api.base);
    let channels = format!(
        "slack: {{accounts: {{main: {{token: '{token}', signing_secret: '{secret}', base_url: '{base}', direct: open}}}}}}"
    );
    let replica = world.replica("adapter-svc-0", &channels).await;
    replica.says("slack/main", "receiving").await;
    replica
}

/// Posts `event` as Slack does; it is taken.
pub(crate) async fn post_to_slack(replica: &Replica, event: &Value) {
    let posted = Delivery::event(event, START);
    let posted = posted.post(&format!("{}/slack/main", replica.base()), 0).await;
    assert_eq!(posted.0, 200, "{}", posted.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_slack_is_fetched_with_the_token_and_a_page_is_no_file() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = slack_replica(&world, &api).await;

    let post = async |number: i64, id: &str| {
        let stamp = format!("{}.{number:06}", START.0 / 1_000);
        let file = json!({"id": id, "name": "a.png", "mimetype": "image/png", "mode": "hosted"});
        let event = json!({"type": "message", "subtype": "file_share", "channel": "D1", "channel_type": "im",
                           "user": "U5", "text": "look", "ts": stamp, "event_ts": stamp, "files": [file]});
        post_to_slack(&replica, &event).await;
    };

    api.files.put("F1", PNG, FileFault::Private);
    post(1, "F1").await;
    assert_stored(&world.stored(1).await[0], PNG, "image/png");

    api.files.put("F2", PNG, FileFault::Page);
    post(2, "F2").await;
    let refused = AttachmentState::Refused(RefusedAttachment::Unavailable);
    assert_eq!(file(&world.stored(2).await[1]).state, refused);

    // Slack waits for three seconds, and the file is not readable yet.
    api.files.put("F3", PNG, FileFault::Hangs);
    post(3, "F3").await;
    api.files.put("F4", b"\x89PNG\r\n\x1a\nother", FileFault::NotYet);
    post(4, "F4").await;
    let events = world.stored(4).await;
    assert!(
        events[2..]
            .iter()
            .all(|event| file(event).state == AttachmentState::Remote)
    );
    api.files.set("F3", FileFault::Private);
    api.files.set("F4", FileFault::Private);
    let events = world.stored(6).await;
    let followed: BTreeSet<&str> = events[4..].iter().map(|event| event.id.as_str()).collect();
    assert_eq!(followed, events[2..4].iter().map(|event| event.id.as_str()).collect());
    assert!(
        events[4..].iter().all(|event| file(event).stored_hash().is_some()),
        "{events:#?}"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_void_address_of_discord_is_refreshed() {
    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let (token, address) = (world.secret(DISCORD), &api.address);
    let channels = format!(
        "discord: {{accounts: {{main: {{token: '{token}', base_url: 'http://{address}/api', \
         ws_url: 'ws://{address}/gateway', direct: open, groups: {{'*': {{require_mention: false}}}}}}}}}}"
    );
    let replica = world.replica("adapter-svc-0", &channels).await;
    replica.says("discord/main", "reading").await;

    let write = |number: i64, url: &str| {
        let mut message = crate::discord_api::message(&snowflake(number, START), "1001", "look");
        message["attachments"] = json!([{"id": format!("{number}"), "filename": "a.png", "size": PNG.len(),
                                         "content_type": "image/png", "url": url}]);
        api.write(DISCORD, &message);
    };
    api.files.put("one", PNG, FileFault::None);
    write(1, &format!("http://{address}/cdn/one?ex=ffffffff&is=0&hm=0&"));
    // Void by its own word, and void before its time.
    api.files.put("void", PNG, FileFault::Expires);
    write(2, &format!("http://{address}/cdn/void?ex=1&is=0&hm=0&"));
    write(3, &format!("http://{address}/cdn/void?ex=ffffffff&is=0&hm=0&"));
    write(4, "https://169.254.169.254/cdn/one");

    let events = world.stored(4).await;
    for event in &events[..3] {
        assert_stored(event, PNG, "image/png");
    }
    assert_eq!(api.files.asked("void"), 3, "a void address is not asked");
    let refused = AttachmentState::Refused(RefusedAttachment::ForbiddenAddress);
    assert_eq!(file(&events[3]).state, refused);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_every_file_is_there_in_the_end() {
    let (nats, bus) = shared::testing::world().await;
    let folder = tempfile::tempdir().expect("a folder");
    let api = BotApi::start(bus.clone(), Arc::new(SystemClock)).await;
    let base = &api.base;
    let channels =
        format!("telegram: {{accounts: {{main: {{token: 'file:token', base_url: '{base}', direct: open}}}}}}\n");
    let now = shared::clock::Clock::now(&SystemClock).0 / 1_000;

    let (rounds, each) = (4_i64, 5_i64);
    let content = |number: i64| format!("file {number} {}", "x".repeat(200_000)).into_bytes();
    for round in 0..rounds {
        let mut process = start_service(&nats, &channels, TELEGRAM, &folder, "adapter-svc-0");
        for number in round * each + 1..=(round + 1) * each {
            // Some are there at once, and others only after the process was killed.
            let fault = if number % 2 == 0 {
                FileFault::None
            } else {
                FileFault::Hangs
            };
            api.files.put(&format!("f{number}"), &content(number), fault);
            let mut message = document(number, &format!("f{number}"), &json!({"mime_type": "text/plain"}));
            message["date"] = json!(now);
            api.add(TELEGRAM, "message", &message);
        }
        let last = (round + 1) * each;
        eventually("it is at work", async || match round % 2 {
            0 => api.files.asked(&format!("f{last}")) > 0 || api.files.asked(&format!("f{}", last - 1)) > 0,
            _ => stored_events(&bus).await.len() > usize::try_from(round * each).expect("small"),
        })
        .await;
        process.kill();
        (1..=last).for_each(|number| api.files.set(&format!("f{number}"), FileFault::None));
    }

    let process = start_service(&nats, &channels, TELEGRAM, &folder, "adapter-svc-0");
    let all = usize::try_from(rounds * each).expect("small");
    let is_stored = |event: &Event| event.attachments.iter().all(|file| file.stored_hash().is_some());
    eventually("every file is stored", async || {
        let events = stored_events(&bus).await;
        let whole: BTreeSet<&str> = events
            .iter()
            .filter(|event| is_stored(event))
            .map(|event| event.id.as_str())
            .collect();
        whole.len() == all && api.confirmed(TELEGRAM) == all
    })
    .await;

    let events = stored_events(&bus).await;
    let received = events
        .iter()
        .filter(|event| event.direction == EventDirection::Received);
    assert_eq!(received.count(), all, "each message once");
    let store = AttachmentStore::new(&bus, Arc::new(SystemClock));
    for number in 1..=rounds * each {
        let content = content(number);
        let read = store.load(&hash(&content), 1 << 20).await.expect("asked");
        assert_eq!(read, Some(content), "{number}");
    }
    drop(process);
}
