//! Slack's payloads over a socket: acknowledged once they are stored, over one connection at a time.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use shared::model::event::UNPAIRED;
use shared::testing::eventually;
use shared::wire::dead_letter::DeadLetter;

use crate::pairing::{code, grant, replies};
use crate::socket_api::SocketApi;
use crate::world::{START, World};

/// The content of `channels.yaml` for the stand-in.
fn channels(world: &World, api: &SocketApi) -> String {
    channels_with(world, api, "direct: open")
}

/// As [`channels`], with `keys` of the account.
pub(crate) fn channels_with(world: &World, api: &SocketApi, keys: &str) -> String {
    let (token, app, base) = (
        world.secret("xoxb-main-secret"),
        world.secret("xapp-main-secret"),
        &api.base,
    );
    format!(
        "slack: {{accounts: {{main: {{token: '{token}', app_token: '{app}', receive: socket, base_url: '{base}', \
         {keys}}}}}}}"
    )
}

pub(crate) fn stamp(number: i64) -> String {
    format!("{}.{number:06}", START.0 / 1_000)
}

/// The direct message `number` of user 5.
pub(crate) fn message(number: i64) -> Value {
    json!({"type": "message", "channel": "D1", "user": "U5", "text": format!("message {number}"), "ts": stamp(number)})
}

pub(crate) async fn acknowledged(api: &SocketApi, count: usize) {
    eventually("the payloads are acknowledged", async || api.acknowledged() >= count).await;
    assert_eq!(api.early(), Vec::<String>::new(), "acknowledged before it was stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn repetitions_and_connections_that_end_lose_and_double_nothing() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    replica
        .says("slack/main", "receiving as @nexus in Acme over a socket")
        .await;

    // Twice each, the later ones first, while connections are refreshed and cut.
    for number in (1..=30).rev() {
        api.bring(&message(number));
        api.bring(&message(number));
        match number {
            20 => api.end(Some(json!({"type": "disconnect", "reason": "refresh_requested"}))),
            10 => api.end(None),
            _ => {}
        }
    }
    acknowledged(&api, 60).await;
    eventually("connections were opened again", async || api.opened() >= 2).await;
    let ids: BTreeSet<String> = world
        .stored(30)
        .await
        .iter()
        .map(|event| event.id.to_string())
        .collect();
    assert_eq!(
        ids,
        (1..=30)
            .map(|number| format!("slack:main/D1/{}", stamp(number)))
            .collect()
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_before_the_stream_has_it() {
    let mut world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    api.bring(&message(1));
    acknowledged(&api, 1).await;

    world.nats.kill9();
    api.bring(&message(2));
    eventually("the payload is sent", async || api.sent() > 0).await;
    assert_eq!(api.acknowledged(), 1);

    world.nats.restart().await;
    acknowledged(&api, 2).await;
    world.stored(2).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_a_dead_letter_before_it_is_acknowledged() {
    let mut world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    replica.says("slack/main", "receiving").await;

    // A message without its id, and a frame of another form. What the app wrote itself is not kept.
    let own = json!({"user": "U7", "ts": stamp(9), "text": "approve K7Q2-M9PX"});
    api.bring(&json!({"type": "message", "channel": "D1", "user": "U5", "text": "no stamp", "root": own}));
    let event = json!({"type": "message", "text": "other form"});
    api.bring_frame(json!({"type": "events_api", "num_connections": "many", "payload": {"event": event}}));
    api.bring(&message(1));
    acknowledged(&api, 3).await;
    assert_eq!(world.stored(1).await[0].content, "message 1");
    check_letters(&world.letters().await, &["no stamp", "other form"]);

    // Without the bus there is no letter, and no acknowledgement.
    world.nats.kill9();
    api.bring(&json!({"type": "message", "channel": "D1", "user": "U5", "text": "no bus"}));
    eventually("the payload is sent", async || api.sent() > 0).await;
    assert_eq!(api.acknowledged(), 3);
    world.nats.restart().await;
    acknowledged(&api, 4).await;
    replica.stop().await;
}

fn check_letters(letters: &[DeadLetter], texts: &[&str]) {
    assert_eq!(letters.len(), texts.len(), "{letters:#?}");
    for (letter, text) in letters.iter().zip(texts) {
        let payload = String::from_utf8(letter.payload_bytes().expect("bytes")).expect("text");
        assert!(payload.contains(text) && !payload.contains("K7Q2"), "{payload}");
        assert_eq!(letter.reason, "malformed");
        assert!(letter.detail.starts_with("slack/main: malformed payload"), "{letter:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_is_connected_and_the_next_one_follows() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let first = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    first.says("slack/main", "receiving").await;
    let second = world.replica("adapter-svc-1", &channels(&world, &api)).await;
    second.says("slack/main", "another replica reads it").await;
    api.bring(&message(1));
    acknowledged(&api, 1).await;
    assert_eq!(api.connections(), 1);

    first.stop().await;
    api.bring(&message(2));
    second.says("slack/main", "receiving").await;
    acknowledged(&api, 2).await;
    assert_eq!((api.connections(), api.opened()), (1, 2));
    world.stored(2).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_time_without_a_connection_is_a_gap() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    replica.says("slack/main", "receiving").await;
    api.bring(&message(1));
    acknowledged(&api, 1).await;

    api.refuse(Some(json!({"ok": false, "error": "internal_error"})));
    api.end(None);
    replica.says("slack/main", "failing: error internal_error").await;
    world.clock.advance(10 * 60_000);
    api.refuse(None);
    replica.says("slack/main", "receiving").await;

    let events = world.stored(2).await;
    assert_eq!(events[1].id.as_str(), format!("gap:slack/main/{}", START.0));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_other_connections_and_a_closed_door_are_said() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    api.set_others(1);
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    replica
        .says("slack/main", "2 connections share the app's payloads")
        .await;
    let parts = replica.health.readiness();
    assert!(parts.ready && parts.parts["slack/main"].degraded, "{parts:?}");

    api.end(Some(json!({"type": "disconnect", "reason": "link_disabled"})));
    replica.says("slack/main", "stopped: Socket Mode is switched off").await;
    replica.stop().await;

    api.refuse(Some(json!({"ok": false, "error": "invalid_auth"})));
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    replica
        .says("slack/main", "stopped: the token is not accepted (invalid_auth)")
        .await;
    for (_, part) in replica.health.readiness().parts {
        assert!(!part.detail.contains("secret"), "{}", part.detail);
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_sent_one_code_and_writes_once_paired() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let replica = world
        .replica("adapter-svc-0", &channels_with(&world, &api, "allow: [U9]"))
        .await;
    replica.says("slack/main", "receiving").await;

    // The same payload over two connections, as after one that ended before it was acknowledged.
    api.bring(&message(1));
    api.bring(&message(1));
    api.bring(&message(2));
    acknowledged(&api, 3).await;
    let stored = world.stored(2).await;
    assert!(stored.iter().all(|event| event.tags == [UNPAIRED]), "{stored:#?}");
    let told = replies(&world).await;
    assert_eq!(told.len(), 1, "one code: {told:?}");
    assert_eq!(told[0].delivery_context.peer_id.as_deref(), Some("D1"));

    let answer = grant(&world, "slack", &code(&told[0])).await.expect("granted");
    assert!(answer.changed);
    api.bring(&message(3));
    acknowledged(&api, 4).await;
    assert_eq!(world.stored(3).await[2].tags, Vec::<String>::new());
    assert_eq!(replies(&world).await.len(), 1);
    replica.stop().await;
}
