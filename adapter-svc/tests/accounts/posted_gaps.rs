//! Accounts to which a platform posts: of which time messages may be missing is told, once, after a time in which nobody took
//! posts that is longer than the platform repeats them.

use serde_json::json;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::testing::eventually;

use crate::bot_api::BotApi;
use crate::web_api::{Delivery, WebApi};
use crate::world::{START, World};
use crate::{slack, telegram_webhook};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// Waits until the account is noted as complete until `at`.
async fn noted(world: &World, channel: &str, account: &str, at: UnixMillis) {
    eventually(&format!("{channel}/{account} is complete until {at}"), async || {
        let watermark = world.watermark(channel, account).await;
        watermark.is_some_and(|watermark| watermark.complete_until == at)
    })
    .await;
}

fn advance(world: &World, ms: i64) {
    world.clock.advance(ms.unsigned_abs());
}

/// The gaps of account `main` in `events`.
fn gaps_of_main(events: &[Event]) -> Vec<&str> {
    let gaps = events
        .iter()
        .filter(|event| event.id.adapter() == "gap" && event.account() == "main");
    gaps.map(|event| event.id.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn telegram_throws_away_what_it_could_not_post_for_a_day() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let channels = telegram_webhook::channels(&world, &api, ", direct: open");
    let replica = world.replica("adapter-svc-0", &channels).await;
    noted(&world, "telegram", "main", START).await;
    replica.stop().await;

    // After 23 hours Telegram still has everything.
    advance(&world, 23 * HOUR_MS);
    let replica = world.replica("adapter-svc-0", &channels).await;
    let begin = START.plus(23 * HOUR_MS);
    noted(&world, "telegram", "main", begin).await;
    replica.stop().await;
    assert_eq!(world.events().await, Vec::<Event>::new());

    // After 25 hours it has not, and one of two replicas says so.
    advance(&world, 25 * HOUR_MS);
    let first = world.replica("adapter-svc-0", &channels).await;
    let second = world.replica("adapter-svc-1", &channels).await;
    noted(&world, "telegram", "main", START.plus(48 * HOUR_MS)).await;
    let events = world.stored(1).await;
    assert_eq!(gaps_of_main(&events), [format!("gap:telegram/main/{}", begin.0)]);
    let kept_from = START.plus(24 * HOUR_MS);
    assert_eq!(events[0].metadata["gap"], json!({"from": begin, "to": kept_from}));
    first.stop().await;
    second.stop().await;

    advance(&world, HOUR_MS);
    let replica = world.replica("adapter-svc-0", &channels).await;
    noted(&world, "telegram", "main", START.plus(49 * HOUR_MS)).await;
    world.stored(1).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slack_gives_up_a_post_after_five_minutes() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let channels = slack::channels(&world, &api, "direct: open");
    let both_noted = async |at: UnixMillis| {
        noted(&world, "slack", "main", at).await;
        noted(&world, "slack", "other", at).await;
    };
    let replica = world.replica("adapter-svc-0", &channels).await;
    both_noted(START).await;
    replica.stop().await;

    // After four minutes Slack posts again what was not taken.
    advance(&world, 4 * MINUTE_MS);
    let replica = world.replica("adapter-svc-0", &channels).await;
    let begin = START.plus(4 * MINUTE_MS);
    both_noted(begin).await;
    replica.stop().await;
    assert_eq!(world.events().await, Vec::<Event>::new());

    // After six it does not, and one of two replicas says so for each account; both take posts.
    advance(&world, 6 * MINUTE_MS);
    let first = world.replica("adapter-svc-0", &channels).await;
    let second = world.replica("adapter-svc-1", &channels).await;
    let end = START.plus(10 * MINUTE_MS);
    both_noted(end).await;
    let events = world.stored(2).await;
    assert_eq!(gaps_of_main(&events), [format!("gap:slack/main/{}", begin.0)]);
    let gap = events.iter().find(|event| event.account() == "main").expect("a gap");
    assert_eq!(gap.metadata["gap"], json!({"from": begin, "to": end}));
    for (number, replica) in [(1, &first), (2, &second)] {
        replica.says("slack/main", "receiving as @nexus in Acme").await;
        let post = Delivery::event(&slack::message(number, end, "D1", &json!({})), end);
        let (status, body) = post.post(&format!("{}/slack/main", replica.base()), 0).await;
        assert_eq!(status, 200, "{body}");
    }
    world.stored(4).await;
    first.stop().await;
    second.stop().await;

    advance(&world, MINUTE_MS);
    let replica = world.replica("adapter-svc-0", &channels).await;
    both_noted(START.plus(11 * MINUTE_MS)).await;
    world.stored(4).await;
    replica.stop().await;
}
