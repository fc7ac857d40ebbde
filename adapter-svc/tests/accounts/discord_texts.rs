//! Texts that a person writes on Discord behind each other, with `debounce_ms`.

use serde_json::json;
use shared::model::event::PlatformIds;
use shared::platform::discord::DISCORD;
use shared::testing::eventually;
use shared::wire::watermark::SourceWatermark;

use crate::discord::{MAIN, OPEN, channels, confirmed, events, start};
use crate::discord_api::{DiscordApi, DiscordFaults, message, snowflake};
use crate::world::{START, World};

/// Channel in which commands are written, which wait for nothing.
const COMMANDS: &str = "1006";

/// Settings with which texts are merged.
fn merging() -> String {
    format!("{OPEN}, debounce_ms: 1000")
}

/// Writes `text` as the message `number` of `channel`; its id.
fn write(api: &DiscordApi, number: i64, channel: &str, text: &str) -> String {
    let id = snowflake(number, START);
    api.write(MAIN, &message(&id, channel, text));
    id
}

/// Waits until everything before the command `number` was taken in.
async fn taken(world: &World, api: &DiscordApi, number: i64) {
    let command = format!("/now {number}");
    write(api, number, COMMANDS, &command);
    eventually("the command is stored", async || {
        contents(world).await.contains(&command)
    })
    .await;
}

/// The contents of the events that are no gaps, in their order.
async fn contents(world: &World) -> Vec<String> {
    let found = events(world).await.0;
    found.into_iter().map(|event| event.content).collect()
}

/// Waits until there are as many events as `expected`, and checks their contents in any order.
async fn stored(world: &World, expected: &[&str]) {
    eventually("the events are stored", async || {
        contents(world).await.len() >= expected.len()
    })
    .await;
    let mut found = contents(world).await;
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_follow_each_other_are_one_event_and_a_decision_is_one_of_its_own() {
    let (world, api, replica) = start(&merging()).await;
    let first = write(&api, 1, "1000", "first");
    let second = write(&api, 2, "1000", "second");
    write(&api, 3, "1001", "elsewhere");
    taken(&world, &api, 4).await;
    assert_eq!(contents(&world).await, ["/now 4"]);
    assert_eq!(api.confirmed(MAIN), 0, "the session is confirmed up to what waits");

    world.clock.advance(1_000);
    confirmed(&api, 4).await;
    stored(&world, &["/now 4", "first\nsecond", "elsewhere"]).await;
    let found = events(&world).await.0;
    let merged = found.iter().find(|event| event.content == "first\nsecond");
    let merged = merged.expect("the merged event");
    assert_eq!(merged.id.as_str(), format!("discord:main/1000/{first}"));
    assert_eq!(
        PlatformIds::from_event(merged).expect("ids").ids,
        [format!("1000/{first}"), format!("1000/{second}")]
    );

    // Discord sends a dispatch again; a decision ends what waits, and neither waits for the clock.
    api.dispatch(MAIN, "MESSAGE_CREATE", &message(&second, "1000", "second"));
    write(&api, 5, "1000", "before");
    write(&api, 6, "1000", "approve K7Q2-M9PX");
    let all = ["/now 4", "first\nsecond", "elsewhere", "before", "approve K7Q2-M9PX"];
    stored(&world, &all).await;
    let found = contents(&world).await;
    let place = |text: &str| found.iter().position(|content| content == text);
    assert!(place("before") < place("approve K7Q2-M9PX"), "{found:?}");
    confirmed(&api, 6).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_wait_when_the_replica_is_gone_come_again_from_the_session_or_the_history() {
    for is_kept in [true, false] {
        let (world, api, replica) = start(&merging()).await;
        write(&api, 1, "1000", "first");
        write(&api, 2, "1000", "second");
        taken(&world, &api, 3).await;
        replica.stop().await;
        assert_eq!(contents(&world).await, ["/now 3"]);

        if !is_kept {
            api.forget_sessions(MAIN);
        }
        let text = channels(&world, &api, &merging());
        let replica = world.replica("adapter-svc-1", &text).await;
        replica.says("discord/main", "reading as nexus77").await;
        if is_kept {
            taken(&world, &api, 4).await;
            world.clock.advance(1_000);
            stored(&world, &["/now 3", "/now 4", "first\nsecond"]).await;
        } else {
            // A history says nothing about when its messages came: each is an event.
            stored(&world, &["/now 3", "first", "second"]).await;
        }
        assert_eq!(api.early(MAIN), Vec::<String>::new());
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_were_decided_before_a_crash_are_the_same_event_after_it() {
    for (is_kept, is_stored) in [(true, false), (true, true), (false, false), (false, true)] {
        let (world, api, replica) = start(&merging()).await;
        let ids = [1, 2].map(|number| write(&api, number, "1000", &format!("text {number}")));
        taken(&world, &api, 3).await;
        replica.stop().await;

        // Killed when it was decided that the two are an event, or when that event was stored.
        let watermark = world.watermark(DISCORD, "main").await.expect("a watermark");
        let numbers = ids.clone().map(|id| id.parse::<i64>().expect("a number"));
        let mut position = watermark.position.clone();
        position["texts"] = json!({"until": numbers[1], "decided": [
            {"place": "1000", "name": format!("burst/{}", ids[0]), "messages": numbers, "is_stored": is_stored}
        ]});
        let decided = SourceWatermark { position, ..watermark };
        let kept = world.bus.kv::<SourceWatermark>("watermarks");
        kept.put("discord.main", &decided).await.expect("written");
        if !is_kept {
            api.forget_sessions(MAIN);
        }

        let text = channels(&world, &api, &merging());
        let replica = world.replica("adapter-svc-1", &text).await;
        replica.says("discord/main", "reading as nexus77").await;
        write(&api, 4, "1000", "later");
        taken(&world, &api, 5).await;
        world.clock.advance(1_000);
        let mut expected = vec!["/now 3", "/now 5", "later"];
        if !is_stored {
            expected.push("text 1\ntext 2");
        }
        stored(&world, &expected).await;
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_wait_when_the_connection_ends_do_not_wait_for_the_next_one() {
    let (world, api, replica) = start(&merging()).await;
    write(&api, 1, "1000", "first");
    write(&api, 2, "1000", "second");
    taken(&world, &api, 3).await;
    assert_eq!(contents(&world).await, ["/now 3"]);

    let away = DiscordFaults {
        is_away: true,
        ..DiscordFaults::default()
    };
    api.set(MAIN, away);
    stored(&world, &["/now 3", "first\nsecond"]).await;

    // The session is resumed behind them.
    api.set(MAIN, DiscordFaults::default());
    taken(&world, &api, 4).await;
    stored(&world, &["/now 3", "first\nsecond", "/now 4"]).await;
    replica.stop().await;
}
