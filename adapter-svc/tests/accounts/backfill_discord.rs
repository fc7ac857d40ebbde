//! What channels on Discord kept, read on an operator's order.

use std::collections::BTreeSet;

use shared::bus::RequestError;
use shared::model::event::{BACKFILLED, Event};
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
        bot.history.entry(channel.to_owned()).or_default().push(kept);
    });
    format!("discord:main/{channel}/{id}")
}

/// The time of hour `number` since `since`.
fn hour(since: UnixMillis, number: i64) -> UnixMillis {
    since.plus(1_000 + 3_600_000 * number)
}

/// Ids of the events of what channels and threads kept.
struct KeptMessages {
    /// Of the first channel: more than two pages.
    first: Vec<String>,
    second: Vec<String>,
    thread: Vec<String>,
    archived: Vec<String>,
}

impl KeptMessages {
    /// Keeps messages of twenty days since `since`.
    fn keep(api: &DiscordApi, since: UnixMillis) -> Self {
        let (first, second) = (FIRST_CHANNEL.to_string(), (FIRST_CHANNEL + 1).to_string());
        let in_channel = |channel: &str, from: i64, count: i64| -> Vec<String> {
            let numbers = 1..=count;
            numbers.map(|n| keep(api, channel, n, hour(since, from + n))).collect()
        };
        let archived = (0..3).flat_map(|number| in_channel(&format!("{ARCHIVED}0{number}"), number, 1));
        Self {
            first: in_channel(&first, 0, 230),
            second: in_channel(&second, 470, 3),
            thread: in_channel(THREAD, 0, 3),
            archived: archived.collect(),
        }
    }

    /// Checks that `events` are these and the `live` ones, each once and in order, and that what is old fires nothing.
    fn check(&self, events: &[Event], live: &[String]) {
        let unique: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(unique.len(), events.len(), "each once");
        let kept = [&self.first, &self.second, &self.thread, &self.archived];
        let expected: BTreeSet<&str> = kept.into_iter().flatten().chain(live).map(String::as_str).collect();
        assert_eq!(unique, expected);

        let first = FIRST_CHANNEL.to_string();
        let mut in_order = ids_in(events, &first);
        in_order.retain(|id| self.first.contains(id));
        assert_eq!(in_order, self.first);
        // A thread is in the conversation of its channel.
        let of_thread = events.iter().find(|event| event.id.as_str() == self.thread[0]);
        let of_thread = of_thread.expect("stored");
        let place = (of_thread.peer.id.as_str(), of_thread.thread_id.as_deref());
        assert_eq!(place, (first.as_str(), Some(THREAD)));

        for event in events {
            let id = event.id.as_str().rsplit('/').next().expect("an id");
            let is_old = START.since(snowflake_time(id).expect("a time")) > DAY_MS;
            assert_eq!(event.tags.iter().any(|tag| tag == BACKFILLED), is_old, "{event:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_and_threads_are_stored_once_and_in_order_beside_what_was_received() {
    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let since = UnixMillis(START.0 - 20 * DAY_MS);
    let kept = KeptMessages::keep(&api, since);
    keep(&api, "1006", 1, since.plus(-1));
    let directly = keep(&api, DIRECT, 1, hour(since, 1));
    keep(&api, DIRECT, 2, hour(since, 2));
    // The bot may not read one of them.
    keep(&api, "990", 1, hour(since, 1));

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
    kept.check(&events, &live);

    // A direct channel is in no list; it is read if it is named.
    let named = StartBackfill {
        until: Some(hour(since, 1)),
        conversations: vec![DIRECT.to_owned()],
        ..order("discord", since)
    };
    let _: BackfillJob = ask(&world.bus, "start", &named).await.expect("begun");
    assert_eq!(ended(&world.bus, "discord").await.events, 1);
    let events = world.stored(count + 1).await;
    assert_eq!(events.last().map(|event| event.id.to_string()), Some(directly));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_account_that_merges_texts_nothing_is_read_that_its_source_has_still_to_store() {
    const MARGIN_MS: i64 = 5 * 60_000;

    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let first = FIRST_CHANNEL.to_string();
    let kept = keep(&api, &first, 1, START.plus(-MARGIN_MS - 1_000));
    keep(&api, &first, 2, START.plus(-MARGIN_MS + 1_000));
    let merging = format!("{OPEN}, debounce_ms: 1000");
    let replica = world
        .replica_with("adapter-svc-0", &channels(&world, &api, &merging), FAST)
        .await;
    replica.says("discord/main", "reading as nexus77").await;

    let late = StartBackfill {
        until: Some(START),
        ..order("discord", START.plus(-DAY_MS))
    };
    let refused = ask::<BackfillJob>(&world.bus, "start", &late).await;
    assert!(
        matches!(refused, Err(RequestError::Service { code: 400, .. })),
        "{refused:?}"
    );

    let begun: BackfillJob = ask(&world.bus, "start", &order("discord", START.plus(-DAY_MS)))
        .await
        .expect("begun");
    assert_eq!(begun.until, START.plus(-MARGIN_MS));
    assert_eq!(ended(&world.bus, "discord").await.state, BackfillState::Done);
    let events = world.stored(1).await;
    assert_eq!(events[0].id.as_str(), kept);
    replica.stop().await;
}
