//! Bots to which Telegram posts: who sets the webhook, what is taken, and what comes again.

use std::sync::Arc;

use serde_json::{Value, json};
use shared::clock::SystemClock;
use shared::model::time::UnixMillis;
use shared::testing::eventually;

use crate::bot_api::{BotApi, BotFaults};
use crate::world::{Replica, START, World};

pub(crate) const TOKEN: &str = "77:main-secret";
pub(crate) const SECRET: &str = "s3cret-s3cret-s3cret";

pub(crate) fn channels(world: &World, api: &BotApi, more: &str) -> String {
    let (token, secret, base) = (world.secret(TOKEN), world.secret(SECRET), &api.base);
    format!(
        "telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', receive: webhook, \
         webhook_url: 'https://nexus.example.com', webhook_secret: '{secret}'{more}}}}}}}"
    )
}

fn message(number: i64, at: UnixMillis) -> Value {
    json!({"message_id": number, "date": at.0 / 1_000, "text": format!("message {number}"),
           "from": {"id": 5, "first_name": "Ann"}, "chat": {"id": 5, "type": "private"}})
}

/// Posts `update` as Telegram does; the status, and what the answer says.
pub(crate) async fn post(replica: &Replica, secret: Option<&str>, update: &Value) -> (u16, String) {
    let client = reqwest::Client::builder()
        .timeout(std::time::Duration::from_secs(60))
        .build()
        .expect("a client");
    let mut request = client
        .post(format!("{}/telegram/main", replica.base()))
        .header("content-type", "application/json")
        .body(update.to_string());
    if let Some(secret) = secret {
        request = request.header("x-telegram-bot-api-secret-token", secret);
    }
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.text().await.expect("a body"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_sets_the_webhook_and_posts_with_its_secret_alone_are_taken() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = channels(&world, &api, ", direct: open");
    let replica = world.replica("adapter-svc-0", &channels).await;
    replica.says("telegram/main", "receiving by webhook as @nexus").await;
    let second = world.replica("adapter-svc-1", &channels).await;
    eventually("the webhook is set", async || api.webhook(TOKEN).is_some()).await;
    let (url, secret) = api.webhook(TOKEN).expect("a webhook");
    assert_eq!(
        (url.as_str(), secret.as_str()),
        ("https://nexus.example.com/telegram/main", SECRET)
    );
    assert_eq!(api.webhook_calls(TOKEN), ["setWebhook"], "one replica sets it, once");

    let update = json!({"update_id": 1, "message": message(1, START)});
    for wrong in [None, Some(""), Some("s3cret-s3cret-s3creT")] {
        assert_eq!(post(&replica, wrong, &update).await.0, 401);
    }
    assert_eq!(post(&replica, Some(SECRET), &json!("no update")).await.0, 200);
    // Each replica takes posts, and one that comes again is one event.
    for taker in [&replica, &second, &replica] {
        assert_eq!(post(taker, Some(SECRET), &update).await, (200, String::new()));
    }
    let mut edited = message(1, START);
    edited["edit_date"] = json!(START.0 / 1_000 + 1);
    edited["text"] = json!("other words");
    post(
        &replica,
        Some(SECRET),
        &json!({"update_id": 2, "edited_message": edited}),
    )
    .await;
    let sent = json!({"message_id": 2, "date": START.0 / 1_000, "text": "ours", "from": {"id": 77, "is_bot": true,
                      "first_name": "Nexus"}, "chat": {"id": 5, "type": "private"}});
    let press = json!({"update_id": 3, "callback_query": {"id": "4382", "from": {"id": 5, "first_name": "Ann"},
                       "message": sent, "chat_instance": "1", "data": "approve"}});
    let (status, answer) = post(&replica, Some(SECRET), &press).await;
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(
        (status, &answer["method"], &answer["callback_query_id"]),
        (200, &json!("answerCallbackQuery"), &json!("4382"))
    );
    // What the bot has sent is no event.
    assert_eq!(
        post(&replica, Some(SECRET), &json!({"update_id": 4, "message": sent}))
            .await
            .0,
        200
    );

    let events = world.stored(3).await;
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.id.as_str(), event.content.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("telegram:main/5/1", "message 1"),
            ("telegram:main/5/1", "other words"),
            ("telegram:main/5/2/press/4382", "approve"),
        ]
    );
    assert_eq!(api.polls(TOKEN), 0);
    replica.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_posted_while_nats_is_away_is_kept_and_comes_in_order() {
    let mut world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, ", allow: [5]"))
        .await;
    eventually("the webhook is set", async || api.webhook(TOKEN).is_some()).await;
    let update = |number: i64| json!({"update_id": number, "message": message(number, START)});
    eventually("the bot is known", async || {
        post(&replica, Some(SECRET), &update(1)).await.0 == 200
    })
    .await;

    world.nats.kill9();
    for number in 2..=5 {
        assert_eq!(post(&replica, Some(SECRET), &update(number)).await.0, 200);
    }
    world.nats.restart().await;
    let events = world.stored(5).await;
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(
        ids,
        (1..=5)
            .map(|number| format!("telegram:main/5/{number}"))
            .collect::<Vec<_>>()
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_another_program_sets_is_replaced() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), Arc::new(SystemClock)).await;
    api.steal_webhook(TOKEN, "https://example.com/other");
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, "")).await;
    replica
        .says("telegram/main", "receiving by webhook as @nexus77bot")
        .await;
    assert_eq!(
        api.webhook(TOKEN).expect("a webhook").0,
        "https://nexus.example.com/telegram/main"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_is_polled_again_removes_its_own_webhook_and_no_other() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world
        .replica("adapter-svc-0", &channels(&world, &api, ", direct: open"))
        .await;
    eventually("the webhook is set", async || api.webhook(TOKEN).is_some()).await;
    replica.stop().await;

    let (token, base) = (world.secret(TOKEN), &api.base);
    let polled = format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', direct: open}}}}}}");
    api.add(TOKEN, "message", &message(1, START));
    let replica = world.replica("adapter-svc-0", &polled).await;
    world.stored(1).await;
    assert_eq!(api.webhook_calls(TOKEN), ["setWebhook", "deleteWebhook"]);
    replica.stop().await;

    api.steal_webhook(TOKEN, "https://example.com/other");
    let replica = world.replica("adapter-svc-0", &polled).await;
    replica.says("telegram/main", "a webhook is set").await;
    assert_eq!(api.webhook_calls(TOKEN).len(), 2);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_stops_the_account_and_telegram_keeps_what_it_posts() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let revoked = BotFaults {
        is_revoked: true,
        ..BotFaults::default()
    };
    api.set(TOKEN, revoked);
    let channels = channels(&world, &api, ", direct: open");
    let replica = world.replica("adapter-svc-0", &channels).await;
    replica
        .says("telegram/main", "stopped: the token is not accepted")
        .await;
    let parts = replica.health.readiness();
    assert!(parts.ready && parts.parts["telegram/main"].degraded, "{parts:?}");

    // Nobody knows whose update it is.
    let update = json!({"update_id": 1, "message": message(1, START)});
    assert_eq!(post(&replica, Some(SECRET), &update).await.0, 503);
    replica.stop().await;

    api.set(TOKEN, BotFaults::default());
    let replica = world.replica("adapter-svc-0", &channels).await;
    replica.says("telegram/main", "receiving by webhook as @nexus").await;
    assert_eq!(post(&replica, Some(SECRET), &update).await.0, 200);
    assert_eq!(world.stored(1).await[0].content, "message 1");
    replica.stop().await;
}
