//! Texts that a person writes on Slack behind each other, with `debounce_ms`, over a socket.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use shared::model::event::{EventDirection, PlatformIds};
use shared::testing::eventually;
use shared::wire::watermark::SourceWatermark;

use crate::slack_socket::{acknowledged, channels_with, message, stamp};
use crate::socket_api::SocketApi;
use crate::world::{Replica, World};

const MERGING: &str = "direct: open, debounce_ms: 1000";

/// A text of user 5 in the conversation `channel`.
fn said(channel: &str, number: i64, text: &str) -> Value {
    json!({"type": "message", "channel": channel, "user": "U5", "text": text, "ts": stamp(number)})
}

async fn start(world: &World, api: &SocketApi, name: &str) -> Replica {
    let replica = world.replica(name, &channels_with(world, api, MERGING)).await;
    replica.says("slack/main", "receiving").await;
    replica
}

/// The contents of the events.
async fn contents(world: &World) -> BTreeSet<String> {
    let events = world.events().await;
    events.into_iter().map(|event| event.content).collect()
}

fn texts(expected: &[&str]) -> BTreeSet<String> {
    expected.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_follow_each_other_are_one_event_and_acknowledged_once_it_is_stored() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = start(&world, &api, "adapter-svc-0").await;
    api.bring(&message(1));
    api.bring(&message(2));
    api.bring(&said("D2", 3, "elsewhere"));
    // A command waits for nothing, so that all before it were taken in.
    api.bring(&said("D3", 4, "/now"));
    acknowledged(&api, 1).await;
    assert_eq!((contents(&world).await, api.sent()), (texts(&["/now"]), 3));

    world.clock.advance(1_000);
    acknowledged(&api, 4).await;
    let events = world.stored(3).await;
    let merged = events.iter().find(|event| event.content == "message 1\nmessage 2");
    let merged = merged.expect("the merged event");
    assert_eq!(merged.id.as_str(), format!("slack:main/D1/{}", stamp(1)));
    assert_eq!(
        PlatformIds::from_event(merged).expect("ids").ids,
        [format!("D1/{}", stamp(1)), format!("D1/{}", stamp(2))]
    );

    // An acknowledgement was lost; a decision ends what waits, and neither waits for the clock.
    api.bring(&message(2));
    api.bring(&message(5));
    api.bring(&said("D1", 6, "approve K7Q2-M9PX"));
    acknowledged(&api, 7).await;
    let events = world.stored(5).await;
    let found: Vec<&str> = events[3..].iter().map(|event| event.content.as_str()).collect();
    assert_eq!(found, ["message 5", "approve K7Q2-M9PX"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_wait_at_the_end_of_a_connection_are_stored_and_those_of_a_replica_come_again() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = start(&world, &api, "adapter-svc-0").await;
    api.bring(&message(1));
    api.bring(&message(2));
    api.bring(&said("D3", 3, "/now"));
    acknowledged(&api, 1).await;

    // Slack sends both again over the next connection: they are known.
    api.end(None);
    acknowledged(&api, 3).await;
    world.stored(2).await;
    assert_eq!(contents(&world).await, texts(&["/now", "message 1\nmessage 2"]));

    api.bring(&message(4));
    api.bring(&message(5));
    api.bring(&said("D3", 6, "/again"));
    acknowledged(&api, 4).await;
    replica.stop().await;
    eventually("the connection is gone", async || api.connections() == 0).await;
    world.stored(3).await;

    let replica = start(&world, &api, "adapter-svc-1").await;
    api.bring(&said("D3", 7, "/later"));
    acknowledged(&api, 5).await;
    world.clock.advance(1_000);
    acknowledged(&api, 7).await;
    world.stored(5).await;
    assert!(contents(&world).await.contains("message 4\nmessage 5"));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_wait_are_stored_when_the_app_is_switched_off() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = start(&world, &api, "adapter-svc-0").await;
    api.bring(&message(1));
    api.bring(&message(2));
    api.bring(&said("D3", 3, "/now"));
    acknowledged(&api, 1).await;

    api.end(Some(json!({"type": "disconnect", "reason": "link_disabled"})));
    replica.says("slack/main", "stopped: Socket Mode is switched off").await;
    world.stored(2).await;
    assert_eq!(contents(&world).await, texts(&["/now", "message 1\nmessage 2"]));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_never_open_for_longer_than_slack_waits() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = start(&world, &api, "adapter-svc-0").await;
    // Each text comes within the wait, and all of them take longer than two seconds.
    for number in 1..=3 {
        api.bring(&message(number));
        api.bring(&said("D3", 100 + number, "/now"));
        acknowledged(&api, usize::try_from(number).expect("small")).await;
        world.clock.advance(700);
    }
    acknowledged(&api, 6).await;
    assert!(contents(&world).await.contains("message 1\nmessage 2\nmessage 3"));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_one_of_merged_texts_changes_their_event_and_a_lost_watermark_doubles_none() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = start(&world, &api, "adapter-svc-0").await;
    api.bring(&message(1));
    api.bring(&message(2));
    api.bring(&said("D3", 3, "/now"));
    acknowledged(&api, 1).await;
    world.clock.advance(1_000);
    acknowledged(&api, 3).await;

    let mut edited = message(1);
    edited["text"] = json!("message 1!");
    edited["edited"] = json!({"user": "U5", "ts": "1700000010.000000"});
    api.bring(
        &json!({"type": "message", "subtype": "message_changed", "channel": "D1", "ts": stamp(1),
                "event_ts": "1700000010.000100", "message": edited, "previous_message": message(1)}),
    );
    acknowledged(&api, 4).await;
    api.bring(
        &json!({"type": "message", "subtype": "message_deleted", "channel": "D1", "ts": stamp(2),
                "event_ts": "1700000020.000100", "deleted_ts": stamp(2), "previous_message": message(2)}),
    );
    acknowledged(&api, 5).await;
    let events = world.stored(4).await;
    let id = format!("slack:main/D1/{}", stamp(1));
    let told: Vec<_> = events[2..]
        .iter()
        .map(|event| (event.id.as_str(), event.direction, event.content.as_str()))
        .collect();
    let change = |content: &'static str| (id.as_str(), EventDirection::Updated, content);
    assert_eq!(told, [change("message 1!\nmessage 2"), change("message 1!")]);

    // The decisions are lost, and Slack sends a part again.
    replica.stop().await;
    let watermarks = world.bus.kv::<SourceWatermark>("watermarks");
    watermarks.delete("slack.main", None).await.expect("deleted");
    world.clock.advance(60_000);
    let replica = start(&world, &api, "adapter-svc-1").await;
    api.bring(&message(2));
    api.bring(&said("D3", 9, "/later"));
    acknowledged(&api, 7).await;
    let events = world.stored(5).await;
    assert_eq!(events[4].content, "/later");
    replica.stop().await;
}
