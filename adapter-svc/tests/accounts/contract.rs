//! What every source must hold to, whatever its platform (`docs/contribute/source.md`).

use std::collections::BTreeSet;

use shared::model::event::{BACKFILLED, Event};
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::wire::watermark::{SourceWatermark, watermark_key};

use crate::world::{Replica, START, World};

/// A platform's stand-in, as the contract uses it. Accounts are `main` and `other`.
pub(crate) trait Platform {
    /// Name of the channel.
    const CHANNEL: &'static str;
    /// What the source of an account reports that works.
    const WORKS: &'static str;
    /// What it reports while the platform does not answer.
    const FAILS: &'static str;
    /// Time for which the platform keeps what was not confirmed, in milliseconds: less than 25 hours.
    const KEEPS_MS: i64;

    /// The content of `channels.yaml` with both accounts.
    fn channels(&self, world: &World) -> String;
    /// Lets somebody write the message `number` to `account` at `at`; the id of its event.
    fn say(&self, account: &str, number: i64, at: UnixMillis) -> String;
    /// Repeats and shuffles what `account` is handed from now on.
    fn disorder(&self, account: &str);
    /// Stops or starts answering `account`.
    fn set_away(&self, account: &str, is_away: bool);
    /// Drops what `account` has not confirmed, as after a long time.
    fn forget(&self, account: &str);
    /// Makes the credential of `account` invalid.
    fn revoke(&self, account: &str);
    /// Number of messages that `account` has confirmed.
    fn confirmed(&self, account: &str) -> usize;
    /// Number of messages that `account` was handed.
    fn handed(&self, account: &str) -> usize;
    /// Number of calls of `account`.
    fn calls(&self, account: &str) -> u64;
    /// What `account` confirmed before it was stored.
    fn early(&self, account: &str) -> Vec<String>;
}

fn ids(events: &[Event]) -> BTreeSet<String> {
    events.iter().map(|event| event.id.to_string()).collect()
}

/// The part of `/readyz` of account `main`.
fn main_part<P: Platform>() -> String {
    format!("{}/main", P::CHANNEL)
}

async fn confirmed(platform: &impl Platform, account: &str, count: usize) {
    let reached = async || platform.confirmed(account) >= count;
    eventually("the messages are confirmed", reached).await;
    assert_eq!(
        platform.early(account),
        Vec::<String>::new(),
        "confirmed before it was stored"
    );
}

/// Runs the whole contract against the stand-ins that `make` starts, each with a world of its own.
pub(crate) async fn check_source<P: Platform>(make: impl AsyncFn(&World) -> P) {
    for number in 0..5 {
        let world = World::start().await;
        let platform = make(&world).await;
        let channels = platform.channels(&world);
        match number {
            0 => repetitions_and_other_orders_are_one_event_each(&world, &platform, &channels).await,
            1 => nothing_is_confirmed_before_the_stream_has_it(world, &platform, &channels).await,
            2 => what_was_missed_is_read_or_told(&world, &platform, &channels).await,
            3 => a_revoked_account_stops_alone(&world, &platform, &channels).await,
            _ => a_first_sync_is_backfilled(&world, &platform, &channels).await,
        }
    }
}

async fn repetitions_and_other_orders_are_one_event_each<P: Platform>(world: &World, platform: &P, channels: &str) {
    platform.disorder("main");
    let mut expected: BTreeSet<String> = (1..=150).map(|n| platform.say("main", n, START)).collect();
    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 150).await;

    // A restart reads on from where it was, and a watermark that is lost or older only repeats.
    let watermark = world.watermark(P::CHANNEL, "main").await.expect("a watermark");
    let key = watermark_key(P::CHANNEL, "main");
    replica.stop().await;
    expected.extend((151..=160).map(|n| platform.say("main", n, START)));
    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 160).await;
    replica.stop().await;

    let kept = world.bus.kv::<SourceWatermark>("watermarks");
    kept.put(&key, &watermark).await.expect("restored");
    expected.extend((161..=165).map(|n| platform.say("main", n, START)));
    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 165).await;
    replica.stop().await;

    kept.delete(&key, None).await.expect("lost");
    expected.extend((166..=170).map(|n| platform.say("main", n, START)));
    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 170).await;
    assert_eq!(ids(&world.stored(170).await), expected);
    replica.stop().await;
}

async fn nothing_is_confirmed_before_the_stream_has_it<P: Platform>(mut world: World, platform: &P, channels: &str) {
    let replica = world.replica("adapter-svc-0", channels).await;
    let first = platform.say("main", 1, START);
    confirmed(platform, "main", 1).await;
    let watermark = world.watermark(P::CHANNEL, "main").await;

    // The acks of JetStream do not come.
    world.nats.kill9();
    let later: Vec<String> = (2..=20).map(|n| platform.say("main", n, START)).collect();
    eventually("a message is handed over", async || platform.handed("main") > 1).await;
    assert_eq!(platform.confirmed("main"), 1);

    world.nats.restart().await;
    confirmed(platform, "main", 20).await;
    assert_ne!(world.watermark(P::CHANNEL, "main").await, watermark);
    let expected: BTreeSet<String> = later.into_iter().chain([first]).collect();
    assert_eq!(ids(&world.stored(20).await), expected);
    replica.stop().await;
}

async fn what_was_missed_is_read_or_told<P: Platform>(world: &World, platform: &P, channels: &str) {
    let part = main_part::<P>();
    let replica = world.replica("adapter-svc-0", channels).await;
    platform.say("main", 1, START);
    confirmed(platform, "main", 1).await;

    // Ten minutes: everything is there.
    platform.set_away("main", true);
    replica.says(&part, P::FAILS).await;
    platform.say("main", 2, START);
    world.clock.advance(600_000);
    platform.set_away("main", false);
    confirmed(platform, "main", 2).await;
    let events = world.stored(2).await;
    assert!(events.iter().all(|event| event.tags.is_empty()), "{events:?}");

    // 25 hours: the platform has forgotten what came in the meantime, and that is told.
    replica.says(&part, P::WORKS).await;
    platform.set_away("main", true);
    replica.says(&part, P::FAILS).await;
    platform.say("main", 3, START);
    platform.forget("main");
    world.clock.advance(25 * 3_600_000);
    platform.set_away("main", false);
    eventually("the gap is told", async || of_main(world).await.len() > 2).await;
    platform.say("main", 4, START.plus(25 * 3_600_000 + 600_000));
    confirmed(platform, "main", 3).await;
    eventually("the message is stored", async || of_main(world).await.len() > 3).await;
    check_gap::<P>(&replica, of_main(world).await);
    replica.stop().await;

    // The same while no replica runs.
    world.clock.advance(30 * 3_600_000);
    let replica = world.replica("adapter-svc-0", channels).await;
    eventually("the gaps are told", async || {
        let events = of_main(world).await;
        events.iter().filter(|event| event.id.adapter() == "gap").count() == 2
    })
    .await;
    replica.stop().await;
}

/// The events of account `main`.
async fn of_main(world: &World) -> Vec<Event> {
    let mut events = world.events().await;
    events.retain(|event| event.account() == "main");
    events
}

fn check_gap<P: Platform>(replica: &Replica, events: Vec<Event>) {
    assert!(replica.health.readiness().ready);
    assert_eq!(events.len(), 4, "{events:?}");
    let gaps: Vec<Event> = events.into_iter().filter(|event| event.id.adapter() == "gap").collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let (from, to) = (&gaps[0].metadata["gap"]["from"], &gaps[0].metadata["gap"]["to"]);
    let missed = START.plus(25 * 3_600_000 + 600_000 - P::KEEPS_MS);
    assert_eq!(to.as_i64(), Some(missed.0));
    assert!(from.as_i64().is_some_and(|from| from < missed.0), "{from}");
}

async fn a_revoked_account_stops_alone<P: Platform>(world: &World, platform: &P, channels: &str) {
    let part = main_part::<P>();
    let replica = world.replica("adapter-svc-0", channels).await;
    platform.say("main", 1, START);
    confirmed(platform, "main", 1).await;

    platform.revoke("main");
    replica.says(&part, "stopped").await;
    let calls = platform.calls("main");
    let parts = replica.health.readiness();
    assert!(parts.ready && parts.parts[&part].degraded, "{parts:?}");

    platform.say("other", 1, START);
    confirmed(platform, "other", 1).await;
    let other = platform.calls("other");
    eventually("the other account goes on", async || platform.calls("other") > other).await;
    assert_eq!(platform.calls("main"), calls, "it is not asked any more");
    world.stored(2).await;
    replica.stop().await;
}

async fn a_first_sync_is_backfilled(world: &World, platform: &impl Platform, channels: &str) {
    let old = START.plus(-2 * 24 * 3_600_000);
    for number in 1..=1_000 {
        platform.say("main", number, old);
    }
    platform.say("main", 1_001, START);

    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 1_001).await;
    let events = world.stored(1_001).await;
    let fresh: Vec<&Event> = events
        .iter()
        .filter(|event| event.withheld_tags().all(|tag| tag != BACKFILLED))
        .collect();
    assert_eq!(fresh.len(), 1, "{fresh:?}");
    assert_eq!(fresh[0].timestamp, START);
    replica.stop().await;
}
