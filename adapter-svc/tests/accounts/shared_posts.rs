//! Posts to several accounts of one process, which have one watch of KV `posts`: each account keeps its order, whichever process
//! holds it, and late posts are stored too.

use adapter_svc::source::posts::PostQueue;
use serde_json::{Value, json};
use shared::bus::StoredMessage;
use shared::model::event::{Event, EventId};
use shared::model::origin::EventOrigin;
use shared::testing::eventually;
use shared::wire::headers::TraceCarrier;

use crate::bot_api::BotApi;
use crate::posted_texts::{STRICT, text};
use crate::slack_socket;
use crate::socket_api::SocketApi;
use crate::telegram_webhook::{SECRET, TOKEN};
use crate::world::{Replica, START, World};

/// Token of the account `name`, each of a bot of its own.
fn token(name: &str) -> String {
    match name {
        "main" => TOKEN.to_owned(),
        "second" => "78:second-secret".to_owned(),
        other => format!("79:{other}-secret"),
    }
}

/// The content of `channels.yaml` for the accounts `names`, to which Telegram posts, each with `more`.
fn channels(world: &World, api: &BotApi, names: &[&str], more: &str) -> String {
    let (secret, base) = (world.secret(SECRET), &api.base);
    let account = |name: &&str| {
        let token = world.secret(&token(name));
        format!(
            "{name}: {{token: '{token}', base_url: '{base}', receive: webhook, direct: open, \
             webhook_url: 'https://nexus.example.com', webhook_secret: '{secret}'{more}}}"
        )
    };
    let accounts: Vec<String> = names.iter().map(account).collect();
    format!("telegram: {{accounts: {{{}}}}}", accounts.join(", "))
}

/// Posts `message` to `account` at `replica` until it is taken, in the trace `parent` if there is one.
async fn take(replica: &Replica, account: &str, message: &Value, parent: Option<&str>) {
    let url = format!("{}/telegram/{account}", replica.base());
    let client = reqwest::Client::builder()
        .timeout(std::time::Duration::from_secs(60))
        .build()
        .expect("a client");
    let update = json!({"update_id": 1, "message": message}).to_string();
    eventually("the post is taken", async || {
        let mut request = client
            .post(&url)
            .header("content-type", "application/json")
            .header("x-telegram-bot-api-secret-token", SECRET)
            .body(update.clone());
        if let Some(parent) = parent {
            request = request.header("traceparent", parent);
        }
        request.send().await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

/// Waits until KV `posts` has `count` readers.
async fn has_consumers(world: &World, count: u64) {
    eventually(&format!("the bucket has {count} consumers"), async || {
        let state = world.bus.stream_state("KV_posts").await;
        state.is_ok_and(|state| state.consumers == count)
    })
    .await;
}

/// Ids of the events of `account`, in the order of the stream.
fn ids_of<'a>(events: &'a [Event], account: &str) -> Vec<&'a str> {
    let own = events.iter().filter(|event| event.account() == account);
    own.map(|event| event.id.as_str()).collect()
}

async fn stored_messages(world: &World) -> Vec<StoredMessage> {
    let stored = world.bus.read_history("EVENTS", "nexus.ev.>", 1, 100).await;
    stored.expect("the events are read")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accounts_of_a_process_have_one_watch_and_each_keeps_its_order() {
    const NAMES: [&str; 3] = ["main", "second", "third"];
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = channels(&world, &api, &NAMES, "");
    let first = world.replica_with("adapter-svc-0", &channels, STRICT).await;
    for name in NAMES {
        first.says(&format!("telegram/{name}"), "receiving by webhook").await;
    }

    for number in 1..=8 {
        for name in NAMES {
            take(&first, name, &text(number, 5, "hello"), None).await;
        }
    }
    let events = world.stored(24).await;
    for name in NAMES {
        let posted: Vec<String> = (1..=8).map(|number| format!("telegram:{name}/5/{number}")).collect();
        assert_eq!(ids_of(&events, name), posted);
    }
    has_consumers(&world, 1).await;

    // Another process watches once it holds an account, and no process does when no account is left.
    let second = world.replica_with("adapter-svc-1", &channels, STRICT).await;
    first.stop().await;
    for name in NAMES {
        second.says(&format!("telegram/{name}"), "receiving by webhook").await;
        take(&second, name, &text(9, 5, "hello"), None).await;
    }
    assert_eq!(
        ids_of(&world.stored(27).await, "third").last(),
        Some(&"telegram:third/5/9")
    );
    has_consumers(&world, 1).await;
    second.stop().await;
    has_consumers(&world, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_an_account_comes_is_listed_by_a_process_that_watches_already() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let debounce = ", debounce_ms: 300";
    let own = channels(&world, &api, &["main"], debounce);
    let first = world.replica_with("adapter-svc-0", &own, STRICT).await;
    first.says("telegram/main", "receiving by webhook").await;
    let both = channels(&world, &api, &["main", "second"], debounce);
    let second = world.replica_with("adapter-svc-1", &both, STRICT).await;
    second.says("telegram/second", "receiving by webhook").await;
    has_consumers(&world, 2).await;

    take(&first, "main", &text(1, 5, "one"), None).await;
    take(&second, "main", &text(2, 5, "two"), None).await;
    first.stop().await;
    second.says("telegram/main", "receiving by webhook").await;
    take(&second, "main", &text(3, 5, "three"), None).await;
    // It waits for nothing: once it is stored, earlier posts are taken in.
    take(&second, "main", &text(1, 66, "/now"), None).await;
    assert_eq!(ids_of(&world.stored(1).await, "main"), ["telegram:main/66/1"]);

    world.clock.advance(300);
    let events = world.stored(2).await;
    assert_eq!(events[1].content, "one\ntwo\nthree");
    has_consumers(&world, 1).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_keeps_its_trace() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = channels(&world, &api, &["main"], ", debounce_ms: 300");
    let replica = world.replica_with("adapter-svc-0", &channels, STRICT).await;
    replica.says("telegram/main", "receiving by webhook").await;
    let parents = [1, 2, 3].map(|trace| format!("00-0000000000000000000000000000000{trace}-000000000000000a-01"));
    take(&replica, "main", &text(1, 5, "one"), Some(&parents[0])).await;
    take(&replica, "main", &text(2, 5, "two"), Some(&parents[1])).await;
    take(&replica, "main", &text(1, 66, "/now"), Some(&parents[2])).await;
    world.stored(1).await;
    world.clock.advance(300);
    world.stored(2).await;

    let stored = stored_messages(&world).await;
    let traces: Vec<_> = stored.iter().map(|one| one.headers.get("traceparent")).collect();
    assert_eq!(traces, [Some(parents[2].as_str()), Some(parents[0].as_str())]);
    replica.stop().await;
}

/// Brings the event `id` of `peer` on `channel` to the bucket, as the spool of a replica does that was away.
async fn keep_late(world: &World, channel: &str, peer: &str, id: &str) {
    let mut event = Event::new(EventId::parse(id).expect("an id"), channel, peer, START);
    event.account_id = Some("main".to_owned());
    event.origin = EventOrigin::account(channel, "main");
    event.content = "late".to_owned();
    let queue = PostQueue::new(&world.bus, channel, "main");
    let encoded = queue.encode_events(&[event], &TraceCarrier::default());
    for post in encoded.expect("encoded") {
        world.bus.publish(post.to_outgoing()).await.expect("kept");
    }
}

/// Returns how often leases were written.
async fn leases_written(world: &World) -> u64 {
    world.bus.stream_state("KV_leases").await.expect("its state").last
}

/// Advances the clock by ten seconds while the accounts stay held: an account that is taken anew is read from its beginning.
async fn advance_held(world: &World) {
    for _ in 0..5 {
        let before = leases_written(world).await;
        world.clock.advance(2_000);
        // A refresh that was under way counts from before.
        eventually("the leases are refreshed", async || {
            leases_written(world).await >= before + 2
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_that_comes_out_of_a_spool_is_stored_although_the_account_is_polled() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let (token, base) = (world.secret(TOKEN), &api.base);
    let polled = format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', direct: open}}}}}}");
    let replica = world.replica("adapter-svc-0", &polled).await;
    replica.says("telegram/main", "polling as").await;
    keep_late(&world, "telegram", "5", "telegram:main/5/1").await;

    advance_held(&world).await;
    // The call that waits ends.
    api.add(TOKEN, "message", &text(2, 5, "hello"));
    let events = world.stored(2).await;
    let mut ids = ids_of(&events, "main");
    ids.sort_unstable();
    assert_eq!(ids, ["telegram:main/5/1", "telegram:main/5/2"]);
    has_consumers(&world, 0).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_that_comes_out_of_a_spool_is_stored_although_the_account_has_a_socket() {
    let world = World::start().await;
    let api = SocketApi::start(world.bus.clone()).await;
    let socket = slack_socket::channels_with(&world, &api, "direct: open");
    let replica = world.replica("adapter-svc-0", &socket).await;
    replica.says("slack/main", "over a socket").await;
    let ids = [1, 2].map(|number| format!("slack:main/D1/{}", slack_socket::stamp(number)));
    keep_late(&world, "slack", "D1", &ids[0]).await;

    advance_held(&world).await;
    api.bring(&slack_socket::message(2));
    let events = world.stored(2).await;
    let mut stored = ids_of(&events, "main");
    stored.sort_unstable();
    assert_eq!(stored, ids);
    replica.stop().await;
}
