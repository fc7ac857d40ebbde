//! Files that come after their message was edited or deleted, and notes of files that somebody else wrote.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use adapter_svc::attachments::note::{CLAIM_LASTS, FetchNotes};
use adapter_svc::encoded_event::EncodedEvent;
use serde_json::{Value, json};
use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{Attachment, AttachmentState, Event, EventDirection, EventId, RefusedAttachment};
use shared::model::origin::EventOrigin;
use shared::testing::nats::NatsServer;
use shared::testing::{eventually, eventually_some};
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::seal::TrustKeys;
use shared::wire::subject::token;
use shared::wire::topology::topology;
use tempfile::TempDir;

use crate::bot_api::BotApi;
use crate::file_shelf::FileFault;
use crate::files::{PNG, SHORT, SLACK, TELEGRAM, document, fetches, post_to_slack, slack_replica, telegram_channels};
use crate::process::start_service;
use crate::web_api::{Delivery, SECRET, WebApi};
use crate::world::{Replica, START, World, stored_events};

/// Waits until the keeper has tried the file `id` beside the source.
async fn tried_late(api: &BotApi, id: &str) {
    eventually("the file is tried again", async || api.files.asked(id) >= 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_comes_after_an_edit_brings_no_old_text() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_channels(&world, &api);
    let replica = world.replica_with("adapter-svc-0", &channels, SHORT).await;

    api.files.put("slow", PNG, FileFault::Hangs);
    let first = document(1, "slow", &json!({}));
    api.add(TELEGRAM, "message", &first);
    world.stored(1).await;
    assert_eq!(fetches(&world).await, 1);
    tried_late(&api, "slow").await;

    // Another text, and no file any more.
    let mut edited = first.clone();
    edited["edit_date"] = json!(START.0 / 1_000 + 5);
    edited.as_object_mut().expect("an object").remove("document");
    edited.as_object_mut().expect("an object").remove("caption");
    edited["text"] = json!("other words");
    api.add(TELEGRAM, "edited_message", &edited);
    let events = world.stored(2).await;
    assert_eq!(
        (events[1].direction, events[1].content.as_str()),
        (EventDirection::Updated, "other words")
    );
    assert_eq!(fetches(&world).await, 0, "the note of the first version is gone");

    // The keeper's own round ends, and one of a later message follows it.
    api.files.set("slow", FileFault::None);
    api.files.put("next", b"words", FileFault::Hangs);
    api.add(TELEGRAM, "message", &document(2, "next", &json!({})));
    world.stored(3).await;
    api.files.set("next", FileFault::None);
    eventually("the later file is there", async || fetches(&world).await == 0).await;
    let events = world.stored(4).await;
    assert_eq!(events[3].id, events[2].id, "{events:#?}");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_comes_after_a_deletion_brings_nothing_back() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = slack_replica(&world, &api).await;
    let stamp = format!("{}.000001", START.0 / 1_000);
    let post = async |event: Value| {
        post_to_slack(&replica, &event).await;
    };

    api.files.put("F1", PNG, FileFault::Hangs);
    let file = json!({"id": "F1", "name": "a.png", "mimetype": "image/png", "mode": "hosted"});
    post(
        json!({"type": "message", "subtype": "file_share", "channel": "D1", "channel_type": "im", "user": "U5",
                "text": "look", "ts": stamp, "event_ts": stamp, "files": [file]}),
    )
    .await;
    world.stored(1).await;
    assert_eq!(fetches(&world).await, 1);
    let previous = json!({"type": "message", "user": "U5", "text": "look", "ts": stamp});
    post(
        json!({"type": "message", "subtype": "message_deleted", "channel": "D1", "channel_type": "im",
                "deleted_ts": stamp, "ts": format!("{}.000002", START.0 / 1_000), "previous_message": previous}),
    )
    .await;
    let events = world.stored(2).await;
    assert_eq!(
        (&events[1].id, events[1].direction),
        (&events[0].id, EventDirection::Deleted)
    );
    assert_eq!(fetches(&world).await, 0);
    api.files.set("F1", FileFault::Private);
    replica.stop().await;
    assert_eq!(world.stored(2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_note_is_refused_and_publishes_nothing() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world
        .replica_with("adapter-svc-0", &telegram_channels(&world, &api), SHORT)
        .await;
    api.files.put("one", PNG, FileFault::None);

    // As the owner, in every way that is open to somebody without the key. Each is of an item of its own: the keeper looks at
    // a note of one that had a bad note only after a while.
    let keyless = |number, seal: &str| {
        let carrier = TraceCarrier::default();
        let encoded = EncodedEvent::encode_event(&account_event(number), &TrustKeys::default(), &carrier, usize::MAX);
        let mut encoded = encoded.expect("encoded");
        encoded.seal = seal.to_owned();
        cbor(&BTreeMap::from([("message", encoded)]))
    };

    for (number, note) in [(7, keyless(7, "")), (8, keyless(8, "00")), (9, cbor(&account_event(9)))] {
        let subject = format!("$KV.fetches.{}", token(account_event(number).id.as_str()));
        let note = OutgoingMessage::raw(subject, Headers::new(), note);
        world.bus.publish(note).await.expect("stored");
        eventually("the note is removed", async || fetches(&world).await == 0).await;
    }

    api.add(TELEGRAM, "message", &document(1, "one", &json!({})));
    let events = world.stored(1).await;
    assert_eq!(events[0].content, "look");
    assert_eq!(api.files.asked("one"), 1);
    replica.stop().await;
}

/// The event `number` of an account, with a file that is still to be fetched.
fn account_event(number: u32) -> Event {
    let id = EventId::parse(format!("telegram:main/5/{number}")).expect("an id");
    let mut event = Event::new(id, "telegram", "5", START);
    event.account_id = Some("main".to_owned());
    event.origin = EventOrigin::Verified {
        account: "telegram/main".to_owned(),
    };
    event.content = "transfer it all".to_owned();
    event.attachments = vec![Attachment {
        handle: Some("one".to_owned()),
        ..Attachment::default()
    }];
    event
}

fn cbor<T: serde::Serialize>(value: &T) -> bytes::Bytes {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("encoded");
    bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_waits_until_the_version_before_it_is_published() {
    let world = World::start().await;
    let clock = world.clock.clone();
    let notes = FetchNotes::new(&world.bus, clock.clone());
    let mut event = account_event(1);
    notes.write(&event).await.expect("noted");
    let key = token(event.id.as_str());
    let noted = async || notes.read(&key).await.expect("asked").expect("a note");

    // Claimed: the note of the next version is written once the keeper is through.
    let claimed = notes.claim(&noted().await).await.expect("claimed");
    "other words".clone_into(&mut event.content);
    let (edit, later) = (event.clone(), notes.clone());
    let write = tokio::spawn(async move { later.write(&edit).await });
    let waits = tokio::time::timeout(Duration::from_millis(300), notes.remove_earlier(&event)).await;
    assert!(waits.is_err(), "the version before is not published yet");
    assert!(!write.is_finished());
    assert_eq!(noted().await.revision, claimed);
    notes.remove(&key, claimed).await.expect("removed");
    write.await.expect("it ends").expect("noted");
    assert_eq!(noted().await.event.content, "other words");

    // A keeper that has died holds nothing up for longer than its claim lasts.
    let lost = noted().await;
    notes.claim(&lost).await.expect("claimed");
    clock.advance(u64::try_from(CLAIM_LASTS.as_millis()).expect("small"));
    notes.remove_earlier(&event).await.expect("removed");
    assert_eq!(fetches(&world).await, 0);
    assert!(notes.claim(&lost).await.is_err(), "its version is over");
}

/// Posts a file's message to Slack, with the text `text`; an edit of it if `is_edit`.
async fn post_file(replica: &Replica, number: u32, text: &str, edited: Option<Value>) {
    let stamp = format!("{}.{number:06}", START.0 / 1_000);
    let file = json!({"id": "F1", "name": "a.png", "mimetype": "image/png", "mode": "hosted"});
    let mut message = json!({"type": "message", "subtype": "file_share", "channel": "D1", "channel_type": "im",
        "user": "U5", "text": text, "ts": stamp, "event_ts": stamp, "files": [file]});
    if let Some(files) = edited {
        message["files"] = files;
        message["edited"] = json!({"user": "U5", "ts": format!("{}.000009", START.0 / 1_000)});
        message = json!({"type": "message", "subtype": "message_changed", "channel": "D1", "channel_type": "im",
            "ts": format!("{}.000009", START.0 / 1_000), "message": message,
            "previous_message": {"type": "message", "user": "U5", "text": "before", "ts": stamp}});
    }
    post_to_slack(replica, &message).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slacks_messages_with_files_are_taken_while_nats_is_away_and_their_files_follow() {
    let (mut world, api) = (World::start().await, WebApi::start().await);
    let replica = slack_replica(&world, &api).await;
    api.files.put("F1", PNG, FileFault::Hangs);

    world.nats.kill9();
    post_file(&replica, 1, "look", None).await;
    // The files of the second one are gone again before it is published.
    post_file(&replica, 2, "see", None).await;
    post_file(&replica, 2, "other words", Some(json!([]))).await;
    world.nats.restart().await;

    let events = world.stored(3).await;
    assert!(events[..2].iter().all(|event| event.attachments[0].state.is_remote()));
    assert_eq!(fetches(&world).await, 1, "the second one's note is gone");
    api.files.set("F1", FileFault::Private);
    let events = world.stored(4).await;
    let followed = &events[3];
    assert_eq!(
        (followed.content.as_str(), followed.direction),
        ("look", EventDirection::Updated)
    );
    assert!(followed.attachments[0].stored_hash().is_some(), "{followed:#?}");
    eventually("nothing is left to be fetched", async || fetches(&world).await == 0).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_never_comes_is_given_up_after_a_day() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_channels(&world, &api);
    let replica = world.replica_with("adapter-svc-0", &channels, SHORT).await;
    api.files.put("slow", PNG, FileFault::Hangs);
    api.add(TELEGRAM, "message", &document(1, "slow", &json!({})));
    world.stored(1).await;
    tried_late(&api, "slow").await;

    // Each answer is one that may be another the next time.
    api.files.set("slow", FileFault::Status(503));
    world.clock.advance(24 * 3_600_000 + 1);
    let events = world.stored(2).await;
    let given_up = &events[1];
    assert_eq!(
        (&given_up.id, given_up.direction),
        (&events[0].id, EventDirection::Updated)
    );
    let unavailable = AttachmentState::Refused(RefusedAttachment::Unavailable);
    assert_eq!(
        (given_up.content.as_str(), &given_up.attachments[0].state),
        ("look", &unavailable)
    );
    eventually("nothing is left to be fetched", async || fetches(&world).await == 0).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_waits_for_room_in_the_store_and_is_given_up_after_a_day_without() {
    let world = World::start().await;
    let room = async |bytes: i64| {
        let mut changed = topology(1);
        let spec = changed.streams.iter_mut().find(|spec| spec.name == "OBJ_attachments");
        spec.expect("the bucket").max_bytes = bytes;
        world.bus.ensure_topology(&changed, true).await.expect("changed");
    };
    room(1_000).await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_channels(&world, &api);
    let toml = "[attachments]\nwait_ms = 300\n";
    let replica = world.replica_with("adapter-svc-0", &channels, toml).await;
    api.files.put("large", &[7; 5_000], FileFault::None);
    api.add(TELEGRAM, "message", &document(1, "large", &json!({})));
    let events = world.stored(1).await;
    assert!(events[0].attachments[0].state.is_remote());
    tried_late(&api, "large").await;
    assert_eq!(fetches(&world).await, 1, "it waits");

    // An operator makes room.
    room(1_000_000).await;
    let events = world.stored(2).await;
    assert!(events[1].attachments[0].stored_hash().is_some(), "{events:#?}");

    room(1_000).await;
    api.files.put("second", &[8; 5_000], FileFault::None);
    api.add(TELEGRAM, "message", &document(2, "second", &json!({})));
    world.stored(3).await;
    tried_late(&api, "second").await;
    world.clock.advance(24 * 3_600_000 + 1);
    let events = world.stored(4).await;
    let full = AttachmentState::Refused(RefusedAttachment::Full);
    assert_eq!(events[3].attachments[0].state, full);
    replica.stop().await;
}

fn signal(nats: &NatsServer, name: &str) {
    let pid = nats.pid().expect("a process").to_string();
    let sent = Command::new("kill").args([name, &pid]).status();
    assert!(sent.is_ok_and(|status| status.success()), "no signal is sent");
}

/// The base URL of the gateway of `name`, once it listens.
async fn gateway_of(folder: &TempDir, name: &str) -> String {
    let run = folder.path().join(format!("{name}/run/adapter-svc-{name}.json"));
    let address = || {
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&run).ok()?).ok()?;
        Some(told["gateway"].as_str()?.to_owned())
    };
    format!(
        "http://{}",
        eventually_some("the gateway listens", async || address()).await
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn slack_is_answered_in_time_whatever_is_slow() {
    let (nats, bus) = shared::testing::world().await;
    let (folder, api) = (tempfile::tempdir().expect("a folder"), WebApi::start().await);
    let secret = folder.path().join("secret");
    std::fs::write(&secret, SECRET).expect("a secret");
    let (base, secret) = (&api.base, secret.display());
    // Strangers pair, so that the bus is asked about each.
    let channels = format!(
        "slack: {{accounts: {{main: {{token: 'file:token', signing_secret: 'file:{secret}', base_url: '{base}', \
         direct: pairing, groups: {{'*': {{require_mention: false}}}}}}}}}}\n"
    );
    let process = start_service(&nats, &channels, SLACK, &folder, "adapter-svc-0");
    let gateway = gateway_of(&folder, "adapter-svc-0").await;
    let now = || SystemClock.now();
    let post = async |channel: &str, number: i64| {
        let stamp = format!("{}.{number:06}", now().0 / 1_000);
        let file = json!({"id": "F1", "name": "a.png", "mimetype": "image/png", "mode": "hosted"});
        let message = json!({"type": "message", "subtype": "file_share", "channel": channel, "user": "U5",
            "channel_type": if channel == "D1" { "im" } else { "channel" },
            "text": "look", "ts": stamp, "event_ts": stamp, "files": [file]});
        let began = SystemClock.monotonic();
        let answer = Delivery::event(&message, now())
            .post(&format!("{gateway}/slack/main"), 0)
            .await;
        (answer.0, SystemClock.monotonic().saturating_duration_since(began))
    };
    api.files.put("F1", PNG, FileFault::Hangs);
    eventually("the account is known", async || post("C1", 1).await.0 == 200).await;

    // It takes every byte and answers nothing.
    signal(&nats, "-STOP");
    for (number, (channel, expected)) in (2..).zip([("C1", 200), ("D1", 503)]) {
        let (status, took) = post(channel, number).await;
        println!("{channel}: {status} after {took:?}");
        assert_eq!(status, expected);
        assert!(took < Duration::from_millis(2_900), "{took:?}");
    }
    signal(&nats, "-CONT");
    eventually("the second one is stored", async || {
        stored_events(&bus).await.len() == 2
    })
    .await;
    drop(process);
}
