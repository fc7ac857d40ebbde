//! Discord's limits: each stops the calls that it is about, and nothing else; and messages that nobody can read.

use std::collections::BTreeMap;

use serde_json::json;
use shared::model::event::EventDirection;
use shared::testing::eventually;
use shared::wire::dead_letter::DeadLetter;

use crate::discord::{MAIN, OPEN, OTHER, PART, channels, confirmed, events, start};
use crate::discord_api::{DiscordFaults, GUILD, message, snowflake};
use crate::world::{START, World};

/// A wait that no test waits for, in seconds.
const DAY: f64 = 86_400.0;
/// A channel that is in no list.
const UNLISTED: &str = "1700";

fn limited(path: &str, seconds: f64) -> DiscordFaults {
    DiscordFaults {
        limited: BTreeMap::from([(path.to_owned(), seconds)]),
        ..DiscordFaults::default()
    }
}

async fn stored(world: &World, content: &str) {
    eventually(&format!("`{content}` is stored"), async || {
        events(world).await.0.iter().any(|event| event.content == content)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_must_wait_a_day_holds_up_neither_other_histories_nor_what_happens() {
    let (world, api, replica) = start(OPEN).await;
    // Channels 1001 and 1002.
    api.say(MAIN, 1, START);
    api.say(MAIN, 2, START);
    confirmed(&api, 2).await;
    replica.stop().await;

    api.forget_sessions(MAIN);
    let later = START.plus(70_000);
    api.write(MAIN, &message(&snowflake(8, later), "1001", "missed in 1001"));
    api.write(MAIN, &message(&snowflake(9, later), "1002", "missed in 1002"));
    api.set(MAIN, limited("/api/channels/1001/messages", DAY));
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    stored(&world, "missed in 1002").await;
    api.write(MAIN, &message(&snowflake(10, later), "1001", "live in 1001"));
    api.write(MAIN, &message(&snowflake(11, later), "1003", "live in 1003"));
    stored(&world, "live in 1001").await;
    stored(&world, "live in 1003").await;
    replica.says(PART, "waiting until").await;
    replica.says(PART, "the history of channel 1001").await;
    let parts = replica.health.readiness();
    assert!(parts.ready && parts.parts[PART].degraded, "{parts:?}");

    // It is called once, and not again before its time.
    assert_eq!(api.refused(MAIN), ["/api/channels/1001/messages"]);
    replica.stop().await;

    api.set(MAIN, DiscordFaults::default());
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    stored(&world, "missed in 1001").await;
    assert_eq!(events(&world).await.0.len(), 6, "each once");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_in_an_unknown_channel_waits_for_a_moment_in_its_order() {
    let (world, api, replica) = start(OPEN).await;
    let path = format!("/api/channels/{UNLISTED}");
    api.set(MAIN, limited(&path, 1.0));
    for number in 1..=3 {
        let content = format!("unlisted {number}");
        api.write(MAIN, &message(&snowflake(number, START), UNLISTED, &content));
    }
    api.write(MAIN, &message(&snowflake(4, START), "1001", "listed"));
    stored(&world, "listed").await;
    eventually("the unknown channel is asked for", async || {
        !api.refused(MAIN).is_empty()
    })
    .await;
    // What waits is not confirmed, and what comes behind it neither.
    assert_eq!(api.confirmed(MAIN), 0);

    api.set(MAIN, DiscordFaults::default());
    confirmed(&api, 4).await;
    let (found, gaps) = events(&world).await;
    let contents: Vec<&str> = found.iter().map(|event| event.content.as_str()).collect();
    assert_eq!(contents, ["listed", "unlisted 1", "unlisted 2", "unlisted 3"]);
    assert_eq!(gaps, Vec::<String>::new());
    assert!(found.iter().all(|event| event.peer.guild_id.as_deref() == Some(GUILD)));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_wait_is_read_from_the_history_and_the_rest_is_one_gap() {
    let (world, api, replica) = start(OPEN).await;
    let path = format!("/api/channels/{UNLISTED}");
    api.set(MAIN, limited(&path, DAY));
    let lost = |number: i64| {
        json!({"user_id": "5", "channel_id": UNLISTED, "message_id": snowflake(number, START), "guild_id": GUILD,
            "emoji": {"id": null, "name": "👍"}})
    };
    for number in 1..=3 {
        let content = format!("unlisted {number}");
        api.write(MAIN, &message(&snowflake(number, START), UNLISTED, &content));
        api.dispatch(MAIN, "MESSAGE_REACTION_ADD", &lost(number));
    }
    api.write(MAIN, &message(&snowflake(4, START), "1001", "listed"));
    // Nothing waits any more, so that everything is confirmed: the position says what is to be read.
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 4).await;
    replica.says(PART, &format!("what channel {UNLISTED} is")).await;
    let (found, gaps) = events(&world).await;
    assert_eq!((found.len(), gaps.len()), (1, 1), "{gaps:?}");
    assert!(
        gaps[0].contains(&format!("does not say what channel {UNLISTED} is")),
        "{gaps:?}"
    );
    assert_eq!(api.refused(MAIN), [path]);
    // Killed or stopped now, nothing of it is lost.
    replica.stop().await;

    api.set(MAIN, DiscordFaults::default());
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    stored(&world, "unlisted 3").await;
    let (found, gaps) = events(&world).await;
    assert_eq!((found.len(), gaps.len()), (4, 1), "{found:#?}");
    let is_message = |event: &shared::model::event::Event| event.direction == EventDirection::Received;
    assert!(found.iter().all(is_message));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_a_server_before_the_api_stops_every_account_of_the_address() {
    let (world, api, replica) = start(OPEN).await;
    replica.says("discord/other", "reading as nexus78").await;
    let barred = DiscordFaults {
        is_barred: true,
        ..DiscordFaults::default()
    };
    api.set(MAIN, barred);
    api.write(MAIN, &message(&snowflake(1, START), UNLISTED, "unlisted"));
    replica.says(PART, "too many calls from this address").await;

    // The other account is not limited itself, and yet makes no call.
    let (calls, known) = (api.paths(OTHER).len(), snowflake(2, START));
    api.write(OTHER, &message(&known, UNLISTED, "unlisted too"));
    api.write(OTHER, &message(&snowflake(3, START), "1001", "listed"));
    replica.says("discord/other", "too many calls from this address").await;
    stored(&world, "listed").await;
    assert_eq!(api.paths(OTHER).len(), calls);
    assert_eq!(api.refused(MAIN).len(), 1);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_can_read_ends_its_session_after_three_tries_and_is_told() {
    for garbage in ["{not JSON", r#"{"op": 0, "d": {}}"#] {
        let (world, api, replica) = start(OPEN).await;
        api.say(MAIN, 1, START);
        confirmed(&api, 1).await;
        // READY, the guild, the first message; then this one.
        api.set(
            MAIN,
            DiscordFaults {
                garbage: Some((0, 4, garbage)),
                ..DiscordFaults::default()
            },
        );
        api.say(MAIN, 2, START);
        api.say(MAIN, 3, START);
        confirmed(&api, 3).await;

        let (found, gaps) = events(&world).await;
        assert_eq!((found.len(), gaps.len()), (3, 1), "{gaps:?}");
        let begun: Vec<&str> = api.begun(MAIN).iter().map(|(_, how)| *how).collect();
        assert_eq!(begun, ["identify", "resume", "resume", "identify"]);
        replica.stop().await;

        let letters = world.bus.read_history("DLQ", "nexus.dlq.>", 1, 10).await.expect("read");
        assert_eq!(letters.len(), 1);
        let letter: DeadLetter = letters[0].decode().expect("a letter");
        assert_eq!(letter.reason, "unreadable");
        assert!(letter.detail.starts_with("discord/main: "), "{letter:?}");
    }
}
