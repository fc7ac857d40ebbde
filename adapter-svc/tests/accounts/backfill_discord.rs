//! What channels on Discord kept, read on an operator's order.

use std::collections::BTreeSet;

use shared::model::event::BACKFILLED;
use shared::model::time::UnixMillis;
use shared::platform::discord::snowflake::snowflake_time;
use shared::wire::operator::backfill::{BackfillJob, BackfillState, StartBackfill};

use crate::backfill::{DAY_MS, FAST, ask, ended, ids_in, order};
use crate::discord::{MAIN, OPEN, channels};
use crate::discord_api::{DiscordApi, DiscordFaults, FIRST_CHANNEL, THREAD, message, snowflake};
use crate::discord_lists::{ARCHIVED, DIRECT};
use crate::world::{START, World};

/// Adds the message `number` of `at` to `channel`, past the gateway; the id of its event.
fn keep(api: &DiscordApi, channel: &str, number: i64, at: UnixMillis) -> String {
    let id = snowflake(number, at);
    let kept = message(&id, channel, &format!("message {number}"));
    api.with(MAIN, |bot| {
        bot.history.entry(channel.to_owned()).or_default().push(kept)
    });
    format!("discord:main/{channel}/{id}")
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_and_threads_are_stored_once_and_in_order_beside_what_was_received() {
    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let since = UnixMillis(START.0 - 20 * DAY_MS);
    let (first, second) = (FIRST_CHANNEL.to_string(), (FIRST_CHANNEL + 1).to_string());
    let archived = [
        format!("{ARCHIVED}00"),
        format!("{ARCHIVED}01"),
        format!("{ARCHIVED}02"),
    ];

    // More than two pages in one channel; little in the others, of which one has nothing of the time.
    let at = |number: i64| since.plus(1_000 + 3_600_000 * number);
    let in_first: Vec<String> = (1..=230).map(|n| keep(&api, &first, n, at(n))).collect();
    let in_second: Vec<String> = (1..=3).map(|n| keep(&api, &second, n, at(470 + n))).collect();
    let in_thread: Vec<String> = (1..=3).map(|n| keep(&api, THREAD, n, at(n))).collect();
    let in_archived: Vec<String> = archived
        .iter()
        .zip(1..)
        .map(|(id, n)| keep(&api, id, n, at(n)))
        .collect();
    keep(&api, "1006", 1, since.plus(-1));
    let directly = keep(&api, DIRECT, 1, at(1));
    keep(&api, DIRECT, 2, at(2));
    // The bot may not read one of them.
    keep(&api, "990", 1, at(1));

    let replica = world
        .replica_with("adapter-svc-0", &channels(&world, &api, OPEN), FAST)
        .await;
    replica.says("discord/main", "reading as nexus77").await;
    let live: Vec<String> = (1..=5)
        .map(|n| {
            let (channel, id) = api.say(MAIN, n, START);
            format!("discord:main/{channel}/{id}")
        })
        .collect();
    world.stored(5).await;
    api.set(
        MAIN,
        DiscordFaults {
            refused_pages: 4,
            closed_channels: vec!["990".to_owned()],
            ..DiscordFaults::default()
        },
    );

    let _: BackfillJob = ask(&world.bus, "start", &order("discord", since)).await.expect("begun");
    let job = ended(&world.bus, "discord").await;
    assert_eq!(job.state, BackfillState::Done, "{job:?}");
    let skipped: Vec<&str> = job.skipped.iter().map(|one| one.conversation.as_str()).collect();
    assert_eq!(skipped, ["990"], "{job:?}");
    assert!(job.skipped[0].reason.contains("Missing Access"), "{job:?}");
    assert!(
        !api.asked(MAIN).contains(&"1006".to_owned()),
        "it has no message of the time"
    );

    // The five came twice, live and in the histories.
    let count = 230 + 3 + 3 + 3 + 5;
    assert_eq!(job.events, count as u64, "{job:?}");
    let events = world.stored(count).await;
    let unique: BTreeSet<String> = events.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(unique.len(), count, "each once");
    let kept: BTreeSet<String> = [&in_first, &in_second, &in_thread, &in_archived, &live]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    assert_eq!(unique, kept);
    let in_order: Vec<String> = ids_in(&events, &first)
        .into_iter()
        .filter(|id| in_first.contains(id))
        .collect();
    assert_eq!(in_order, in_first);

    // A thread is in the conversation of its channel.
    let of_thread = events
        .iter()
        .find(|event| event.id.to_string() == in_thread[0])
        .expect("stored");
    assert_eq!(
        (of_thread.peer.id.as_str(), of_thread.thread_id.as_deref()),
        (first.as_str(), Some(THREAD))
    );
    for event in &events {
        let id = event.id.to_string();
        let at = snowflake_time(id.rsplit('/').next().expect("an id")).expect("a time");
        let is_old = START.since(at) > DAY_MS;
        assert_eq!(event.tags.iter().any(|tag| tag == BACKFILLED), is_old, "{event:?}");
    }

    // A direct channel is in no list; it is read if it is named.
    let named = StartBackfill {
        until: Some(at(1)),
        conversations: vec![DIRECT.to_owned()],
        ..order("discord", since)
    };
    let _: BackfillJob = ask(&world.bus, "start", &named).await.expect("begun");
    assert_eq!(ended(&world.bus, "discord").await.events, 1);
    let events = world.stored(count + 1).await;
    assert_eq!(events.last().map(|event| event.id.to_string()), Some(directly));
    replica.stop().await;
}
