//! Texts that a person writes on Telegram behind each other, with `debounce_ms`.

use serde_json::json;
use shared::platform::telegram::TELEGRAM;
use shared::testing::eventually;
use shared::wire::watermark::SourceWatermark;

use crate::bot_api::{BotApi, BotFaults};
use crate::telegram::{MAIN, channels, message};
use crate::world::{START, World};

/// The content of `channels.yaml` in which the account merges the texts of `wait_ms` milliseconds.
fn merging(world: &World, api: &BotApi, wait_ms: u32) -> String {
    let debounce = format!("debounce_ms: {wait_ms}");
    channels(world, api, MAIN).replacen("album_wait_ms: 300", &debounce, 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_follow_each_other_are_one_event_and_none_is_lost_by_a_crash() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = merging(&world, &api, 300);

    // What was written up to a start may be stored by an earlier run.
    let after = START.plus(1_000);
    // Two texts of a person wait, and the replica is gone before they are an event.
    api.add(MAIN, "message", &message(7, after));
    api.add(MAIN, "message", &message(14, after));
    api.add(MAIN, "message", &message(15, after));
    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the texts are read", async || api.handed(MAIN) >= 3).await;
    replica.stop().await;
    assert_eq!((world.events().await.len(), api.confirmed(MAIN)), (0, 0));

    // The next one reads them again.
    let replica = world.replica("adapter-svc-1", &text).await;
    let handed = api.handed(MAIN);
    eventually("the texts are read again", async || api.handed(MAIN) >= handed + 6).await;
    api.add(MAIN, "message", &message(21, after));
    let handed = api.handed(MAIN);
    eventually("the last text is read", async || api.handed(MAIN) >= handed + 8).await;
    world.clock.advance(300);
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 4).await;

    let mut found: Vec<(String, String)> = world
        .stored(2)
        .await
        .into_iter()
        .map(|event| (event.id.to_string(), event.content))
        .collect();
    found.sort();
    let expected = [
        ("telegram:main/100/7", "message 7\nmessage 14\nmessage 21"),
        ("telegram:main/101/15", "message 15"),
    ];
    assert_eq!(found, expected.map(|(id, content)| (id.to_owned(), content.to_owned())));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_in_which_something_waits_at_all_times_is_complete_up_to_that() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = merging(&world, &api, 4_000);
    let replica = world.replica("adapter-svc-0", &text).await;

    // Before the first text is an event, another person's waits. The watermark of then is not only that of the start:
    // otherwise a day later it would look as if the vendor had thrown updates away.
    api.add(MAIN, "message", &message(7, START.plus(1_000)));
    eventually("the first text waits", async || api.handed(MAIN) >= 2).await;
    world.clock.advance(2_000);
    api.add(MAIN, "message", &message(8, START.plus(2_000)));
    let handed = api.handed(MAIN);
    eventually("the second text waits", async || api.handed(MAIN) >= handed + 6).await;
    world.clock.advance(2_000);
    eventually("the first text is stored", async || world.events().await.len() == 1).await;
    eventually("the watermark says so", async || {
        let watermark = world.watermark(TELEGRAM, "main").await;
        watermark.is_some_and(|watermark| watermark.complete_until == START.plus(1_999))
    })
    .await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_watermark_loses_no_text_that_is_written_behind_a_stored_one() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = merging(&world, &api, 300);

    // The first text was stored before the process was killed, and its watermark is that of a time before.
    let stored = world.replica("adapter-svc-0", &text).await;
    api.add(MAIN, "message", &message(7, START));
    eventually("the first text is stored", async || world.events().await.len() == 1).await;
    eventually("it is confirmed", async || api.confirmed(MAIN) == 1).await;
    stored.stop().await;
    let kept = world.bus.kv::<SourceWatermark>("watermarks");
    let watermark = world.watermark(TELEGRAM, "main").await.expect("a watermark");
    let older = SourceWatermark {
        position: json!({}),
        ..watermark
    };
    kept.put("telegram.main", &older).await.expect("written");
    api.add(MAIN, "message", &message(7, START));
    api.add(MAIN, "message", &message(14, START));

    let replica = world.replica("adapter-svc-1", &text).await;
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 3).await;
    let contents: Vec<String> = world.events().await.into_iter().map(|event| event.content).collect();
    assert_eq!(contents, ["message 7", "message 14"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_wait_no_longer_because_the_vendor_is_away() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &merging(&world, &api, 300)).await;
    api.add(MAIN, "message", &message(7, START.plus(1_000)));
    eventually("the text waits", async || api.handed(MAIN) >= 2).await;

    api.set(
        MAIN,
        BotFaults {
            is_away: true,
            ..BotFaults::default()
        },
    );
    world.clock.advance(300);
    world.stored(1).await;

    // What it hands over again then is known.
    api.set(MAIN, BotFaults::default());
    eventually("it is confirmed", async || api.confirmed(MAIN) == 1).await;
    world.stored(1).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_wait_no_longer_because_the_vendor_limits_calls_for_an_hour() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &merging(&world, &api, 300)).await;
    api.add(MAIN, "message", &message(7, START.plus(1_000)));
    eventually("the text waits", async || api.handed(MAIN) >= 2).await;

    // The call is refused before the text is due.
    api.set(
        MAIN,
        BotFaults {
            limited: 1,
            retry_after: 3_600,
            ..BotFaults::default()
        },
    );
    replica.says("telegram/main", "retry in 3600 s").await;
    assert!(world.events().await.is_empty());
    world.clock.advance(300);
    world.stored(1).await;
    replica.stop().await;
}
