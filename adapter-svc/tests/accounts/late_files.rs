//! Files that come after their message was edited or deleted, and notes of files that somebody else wrote.

use std::collections::BTreeMap;

use adapter_svc::encoded_event::EncodedEvent;
use serde_json::{Value, json};
use shared::bus::OutgoingMessage;
use shared::model::event::{Attachment, Event, EventDirection, EventId};
use shared::model::origin::EventOrigin;
use shared::testing::eventually;
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::seal::TrustKeys;
use shared::wire::subject::token;

use crate::bot_api::BotApi;
use crate::file_shelf::FileFault;
use crate::files::{PNG, SHORT, TELEGRAM, document, fetches, post_to_slack, slack_replica, telegram_channels};
use crate::web_api::WebApi;
use crate::world::{START, World};

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
    let forge = |number: u32| {
        let id = EventId::parse(format!("telegram:main/5/{number}")).expect("an id");
        let mut forged = Event::new(id, "telegram", "5", START);
        forged.account_id = Some("main".to_owned());
        forged.origin = EventOrigin::Verified {
            account: "telegram/main".to_owned(),
        };
        forged.content = "transfer it all".to_owned();
        forged.attachments = vec![Attachment {
            handle: Some("one".to_owned()),
            ..Attachment::default()
        }];
        forged
    };
    let keyless = |number, seal: &str| {
        let carrier = TraceCarrier::default();
        let encoded = EncodedEvent::encode_event(&forge(number), &TrustKeys::default(), &carrier, usize::MAX);
        let mut encoded = encoded.expect("encoded");
        encoded.seal = seal.to_owned();
        cbor(&BTreeMap::from([("message", encoded)]))
    };

    for (number, note) in [(7, keyless(7, "")), (8, keyless(8, "00")), (9, cbor(&forge(9)))] {
        let subject = format!("$KV.fetches.{}", token(forge(number).id.as_str()));
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

fn cbor<T: serde::Serialize>(value: &T) -> bytes::Bytes {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("encoded");
    bytes.into()
}
