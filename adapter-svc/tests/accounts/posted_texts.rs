//! Posts that belong together: texts behind each other, albums and groups that became supergroups, whichever replica takes
//! them.

use serde_json::{Value, json};
use shared::model::event::{Event, PlatformIds};
use shared::testing::eventually;

use crate::bot_api::BotApi;
use crate::slack;
use crate::telegram_webhook::{SECRET, TOKEN, channels, post};
use crate::web_api::{Delivery, WebApi};
use crate::world::{Replica, START, World};

/// Posts are in NATS when they are answered, so that later posts come behind.
pub(crate) const STRICT: &str = "accept = \"stream\"";

/// Number of an update that says nothing about the message in it.
const UPDATE: i64 = 1;

/// The message `number` with `fields`, written in the private chat `chat` by its person after a replica was started.
fn written(number: i64, chat: i64, fields: &Value) -> Value {
    let mut message = json!({"message_id": number, "date": START.0 / 1_000 + 1, "from": {"id": chat, "first_name": "Ann"},
                             "chat": {"id": chat, "type": "private"}});
    let fields = fields.as_object().expect("fields").clone();
    message.as_object_mut().expect("a message").extend(fields);
    message
}

pub(crate) fn text(number: i64, chat: i64, text: &str) -> Value {
    written(number, chat, &json!({ "text": text }))
}

/// Posts `message` to `replica` until it is taken.
async fn take(replica: &Replica, message: &Value) {
    let update = json!({"update_id": UPDATE, "message": message});
    eventually("the post is taken", async || {
        post(replica, Some(SECRET), &update).await.0 == 200
    })
    .await;
}

/// Posts a command of another chat, the message `number`, which waits for nothing: once it is stored, everything that was posted
/// before is taken in. Returns the number of events before it.
async fn take_in(world: &World, replica: &Replica, number: i64) -> usize {
    take(replica, &text(number, 66, "/now")).await;
    let id = format!("telegram:main/66/{number}");
    eventually("the command is stored", async || {
        world.events().await.iter().any(|event| event.id.as_str() == id)
    })
    .await;
    world.events().await.len() - 1
}

async fn start(world: &World, name: &str, channels: &str) -> Replica {
    world.replica_with(name, channels, STRICT).await
}

fn contents(events: &[Event]) -> Vec<&str> {
    let own = events.iter().filter(|event| event.content != "/now");
    own.map(|event| event.content.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_are_posted_to_two_replicas_are_one_event_and_the_chat_keeps_its_order() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = channels(&world, &api, ", direct: open, debounce_ms: 300");
    let first = start(&world, "adapter-svc-0", &channels).await;
    first.says("telegram/main", "receiving by webhook").await;
    let second = start(&world, "adapter-svc-1", &channels).await;

    take(&first, &text(1, 5, "one")).await;
    take(&second, &text(2, 5, "two")).await;
    // Telegram has not heard the answer.
    take(&first, &text(2, 5, "two")).await;
    take(&first, &text(3, 5, "three")).await;
    assert_eq!(take_in(&world, &second, 1).await, 0, "the texts wait for others");
    world.clock.advance(300);
    let events = world.stored(2).await;
    assert_eq!(contents(&events), ["one\ntwo\nthree"]);
    let merged = events.iter().find(|event| event.content != "/now").expect("the texts");
    assert_eq!(merged.id.as_str(), "telegram:main/5/1");
    assert_eq!(PlatformIds::from_event(merged).expect("ids").ids, ["5/1", "5/2", "5/3"]);

    // The message that ends a burst comes behind it, and neither waits for the clock.
    take(&second, &text(4, 5, "four")).await;
    take(&first, &text(5, 5, "/stop")).await;
    let events = world.stored(4).await;
    assert_eq!(contents(&events)[1..], ["four", "/stop"]);

    // The bucket keeps no event that is stored.
    eventually("nothing is kept", async || kept(&world).await == 0).await;
    first.stop().await;
    second.stop().await;
}

/// Number of posted events that are not stored.
async fn kept(world: &World) -> usize {
    let posted = world.bus.kv::<adapter_svc::source::posts::PostedMessage>("posts");
    let survey = posted.survey().await.expect("asked");
    survey.entries.len() + survey.unread.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_a_replica_stops_is_stored_by_the_next_one_also_if_that_polls() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = channels(&world, &api, ", direct: open, debounce_ms: 300");
    let replica = start(&world, "adapter-svc-0", &channels).await;
    take(&replica, &text(1, 5, "one")).await;
    take(&replica, &text(2, 5, "two")).await;
    take_in(&world, &replica, 1).await;
    replica.stop().await;

    let replica = start(&world, "adapter-svc-1", &channels).await;
    take(&replica, &text(3, 5, "three")).await;
    take_in(&world, &replica, 2).await;
    world.clock.advance(300);
    assert_eq!(contents(&world.stored(3).await), ["one\ntwo\nthree"]);

    take(&replica, &text(4, 5, "four")).await;
    take_in(&world, &replica, 3).await;
    replica.stop().await;
    let (token, base) = (world.secret(TOKEN), &api.base);
    let polled = format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', direct: open}}}}}}");
    let replica = start(&world, "adapter-svc-0", &polled).await;
    assert_eq!(contents(&world.stored(5).await), ["one\ntwo\nthree", "four"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_album_that_is_posted_is_one_event() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = channels(&world, &api, ", direct: open, album_wait_ms: 300");
    let first = start(&world, "adapter-svc-0", &channels).await;
    first.says("telegram/main", "receiving by webhook").await;
    let second = start(&world, "adapter-svc-1", &channels).await;
    for (number, replica) in [(1, &first), (2, &second), (3, &first)] {
        let photo = json!([{"file_id": format!("f{number}"), "file_unique_id": "u", "width": 1, "height": 1}]);
        take(
            replica,
            &written(number, 5, &json!({"media_group_id": "a", "photo": photo})),
        )
        .await;
    }
    take(&second, &text(4, 5, "what is this?")).await;
    assert_eq!(
        take_in(&world, &first, 1).await,
        0,
        "the album waits, and what follows behind it"
    );

    world.clock.advance(300);
    let events = world.stored(3).await;
    assert_eq!(contents(&events), ["", "what is this?"]);
    let album = events.iter().find(|event| event.id.as_str() == "telegram:main/5/1");
    assert_eq!(album.expect("the album").attachments.len(), 3);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_became_a_supergroup_keeps_its_settings_in_both_ways_of_receiving() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let groups = "groups: {-6: {require_mention: false}}";
    let posted = channels(&world, &api, &format!(", {groups}"));
    let (token, base) = (world.secret(TOKEN), &api.base);
    let polled = format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', {groups}}}}}}}");
    let said = |number: i64, chat: i64, kind: &str, fields: &Value| {
        let mut said = written(number, 101, fields);
        said["chat"] = json!({"id": chat, "type": kind});
        said
    };
    let (hello, moved) = (json!({"text": "hello"}), json!({"migrate_to_chat_id": -1006}));

    let replica = start(&world, "adapter-svc-0", &posted).await;
    take(&replica, &said(9, -6, "group", &moved)).await;
    take(&replica, &said(1, -1006, "supergroup", &hello)).await;
    world.stored(2).await;
    replica.stop().await;
    let replica = start(&world, "adapter-svc-1", &posted).await;
    take(&replica, &said(2, -1006, "supergroup", &hello)).await;
    world.stored(3).await;
    replica.stop().await;

    let replica = start(&world, "adapter-svc-0", &polled).await;
    api.add(TOKEN, "message", &said(3, -1006, "supergroup", &hello));
    let events = world.stored(4).await;
    for number in 1..=3 {
        let id = format!("telegram:main/-1006/{number}");
        let event = events.iter().find(|event| event.id.as_str() == id).expect("stored");
        assert_eq!((event.former_peer(), event.tags.len()), (Some("-6"), 0), "{event:#?}");
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_slack_posts_to_two_replicas_are_one_event() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let channels = slack::channels(&world, &api, "direct: open, debounce_ms: 2000");
    let first = start(&world, "adapter-svc-0", &channels).await;
    let second = start(&world, "adapter-svc-1", &channels).await;
    for replica in [&first, &second] {
        replica.says("slack/main", "receiving as @nexus in Acme").await;
    }
    let after = START.plus(1_000);
    let say = async |replica: &Replica, number: i64, channel: &str, fields: &Value| {
        let message = slack::message(number, after, channel, fields);
        let url = format!("{}/slack/main", replica.base());
        let (status, body) = Delivery::event(&message, START).post(&url, 0).await;
        assert_eq!(status, 200, "{body}");
    };
    let nothing = json!({});
    say(&first, 1, "D1", &nothing).await;
    say(&second, 2, "D1", &nothing).await;
    say(&first, 3, "D2", &json!({"text": "/now"})).await;
    assert_eq!(contents(&world.stored(1).await), Vec::<&str>::new(), "the texts wait");

    world.clock.advance(2_000);
    let events = world.stored(2).await;
    assert_eq!(contents(&events), ["message 1\nmessage 2"]);
    assert_eq!(events[1].id.as_str(), "slack:main/D1/1700000001.000001");
    first.stop().await;
    second.stop().await;
}
