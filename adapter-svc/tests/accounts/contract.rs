//! What every source must hold to, whatever its platform (`docs/contribute/source.md`).

use std::collections::BTreeSet;
use std::sync::Arc;

use adapter_svc::source::port::Source;
use adapter_svc::source::port::accounts::start_sources;
use shared::clock::Clock as _;
use shared::model::event::{BACKFILLED, Event};
use shared::model::time::UnixMillis;
use shared::process::{Health, ShutdownSignal};
use shared::testing::eventually;

use crate::world::{Replica, START, World, says};

/// Time for which acknowledgements of the stream are withheld, by the clock of a test, in steps and milliseconds each.
const WITHHELD: (u32, i64) = (6, 600_000);

/// A platform's stand-in, as the contract uses it. Accounts are `main` and `other`.
pub(crate) trait Platform {
    /// The name of its channel.
    fn channel(&self) -> &'static str;
    /// What `/readyz` says of an account that is read.
    fn reading(&self) -> &'static str;
    /// Whether an account that was never read has what was written before.
    fn has_earlier(&self) -> bool;
    /// A time without the platform after which it still has everything, in milliseconds.
    fn short_absence(&self) -> u64 {
        600_000
    }
    /// The end of a gap that is told at `now`.
    fn gap_end(&self, now: UnixMillis) -> UnixMillis;
    /// The content of `channels.yaml` with both accounts.
    fn channels(&self, world: &World) -> String;
    /// The source of account `main`, at the time of `world`.
    fn source(&self, world: &World) -> Arc<dyn Source>;
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

/// The ids of `events`.
pub(crate) fn ids(events: &[Event]) -> BTreeSet<String> {
    events.iter().map(|event| event.id.to_string()).collect()
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

/// Starts the first replica and lets `say` be said, before or after, so that it is to be read.
async fn start_and_say(
    world: &World,
    platform: &impl Platform,
    channels: &str,
    say: impl FnOnce() -> Vec<String>,
) -> (Replica, Vec<String>) {
    let part = format!("{}/main", platform.channel());
    if platform.has_earlier() {
        let said = say();
        return (world.replica("adapter-svc-0", channels).await, said);
    }
    let replica = world.replica("adapter-svc-0", channels).await;
    replica.says(&part, platform.reading()).await;
    (replica, say())
}

/// Runs the whole contract against the stand-ins that `make` starts, each with a world of its own.
pub(crate) async fn check_source<P: Platform>(make: impl AsyncFn(&World) -> P) {
    for number in 0..6 {
        let world = World::start().await;
        let platform = make(&world).await;
        let channels = platform.channels(&world);
        match number {
            0 => repetitions_and_other_orders_are_one_event_each(&world, &platform, &channels).await,
            1 => nothing_is_confirmed_before_the_stream_has_it(world, &platform, &channels).await,
            2 => what_was_missed_is_read_or_told(&world, &platform, &channels).await,
            3 => a_revoked_account_stops_alone(&world, &platform, &channels).await,
            4 => a_first_sync_is_backfilled(&world, &platform, &channels).await,
            _ => the_watermark_stands_as_long_as_the_stream_does_not_answer(world, &platform).await,
        }
    }
}

async fn repetitions_and_other_orders_are_one_event_each(world: &World, platform: &impl Platform, channels: &str) {
    platform.disorder("main");
    let say = || (1..=150).map(|n| platform.say("main", n, START)).collect();
    let (replica, said) = start_and_say(world, platform, channels, say).await;
    let mut expected: BTreeSet<String> = said.into_iter().collect();
    confirmed(platform, "main", 150).await;

    // A restart reads on from where it was, and a watermark that is lost or older only repeats.
    let watermark = world.watermark(platform.channel(), "main").await.expect("a watermark");
    replica.stop().await;
    expected.extend((151..=160).map(|n| platform.say("main", n, START)));
    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 160).await;
    replica.stop().await;

    let kept = world.bus.kv::<shared::wire::watermark::SourceWatermark>("watermarks");
    let key = format!("{}.main", platform.channel());
    kept.put(&key, &watermark).await.expect("restored");
    expected.extend((161..=165).map(|n| platform.say("main", n, START)));
    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 165).await;
    replica.stop().await;

    kept.delete(&key, None).await.expect("lost");
    let say = || (166..=170).map(|n| platform.say("main", n, START)).collect();
    let (replica, said) = start_and_say(world, platform, channels, say).await;
    expected.extend(said);
    confirmed(platform, "main", 170).await;
    assert_eq!(ids(&world.stored(170).await), expected);
    replica.stop().await;
}

async fn nothing_is_confirmed_before_the_stream_has_it(mut world: World, platform: &impl Platform, channels: &str) {
    let (replica, first) = start_and_say(&world, platform, channels, || vec![platform.say("main", 1, START)]).await;
    confirmed(platform, "main", 1).await;
    let watermark = world.watermark(platform.channel(), "main").await;

    // The acks of JetStream do not come.
    world.nats.kill9();
    let later: Vec<String> = (2..=20).map(|n| platform.say("main", n, START)).collect();
    eventually("a message is handed over", async || platform.handed("main") > 1).await;
    assert_eq!(platform.confirmed("main"), 1);

    // A watermark without a position differs by its time alone.
    world.clock.advance(1_000);
    world.nats.restart().await;
    confirmed(platform, "main", 20).await;
    assert_ne!(world.watermark(platform.channel(), "main").await, watermark);
    let expected: BTreeSet<String> = later.into_iter().chain(first).collect();
    assert_eq!(ids(&world.stored(20).await), expected);
    replica.stop().await;
}

async fn what_was_missed_is_read_or_told(world: &World, platform: &impl Platform, channels: &str) {
    let part = format!("{}/main", platform.channel());
    let (replica, _) = start_and_say(world, platform, channels, || vec![platform.say("main", 1, START)]).await;
    confirmed(platform, "main", 1).await;

    // A short time: everything is there.
    let short = platform.short_absence();
    platform.set_away("main", true);
    replica.says(&part, "failing").await;
    platform.say("main", 2, START);
    world.clock.advance(short);
    platform.set_away("main", false);
    confirmed(platform, "main", 2).await;
    let events = world.stored(2).await;
    assert!(events.iter().all(|event| event.tags.is_empty()), "{events:?}");

    // 25 hours: the platform has forgotten what came in the meantime, and that is told.
    replica.says(&part, platform.reading()).await;
    platform.set_away("main", true);
    replica.says(&part, "failing").await;
    platform.say("main", 3, START);
    platform.forget("main");
    world.clock.advance(25 * 3_600_000);
    platform.set_away("main", false);
    eventually("the gap is told", async || of_main(world).await.len() > 2).await;
    let told_at = START.plus(25 * 3_600_000 + i64::try_from(short).expect("a short time"));
    platform.say("main", 4, told_at);
    confirmed(platform, "main", 3).await;
    eventually("the message is stored", async || of_main(world).await.len() > 3).await;
    check_gap(&replica, of_main(world).await, platform.gap_end(told_at));
    replica.stop().await;

    // The same while no replica runs.
    platform.forget("main");
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

fn check_gap(replica: &Replica, events: Vec<Event>, end: UnixMillis) {
    assert!(replica.health.readiness().ready);
    assert_eq!(events.len(), 4, "{events:?}");
    let gaps: Vec<Event> = events.into_iter().filter(|event| event.id.adapter() == "gap").collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let (from, to) = (&gaps[0].metadata["gap"]["from"], &gaps[0].metadata["gap"]["to"]);
    assert_eq!(to.as_i64(), Some(end.0));
    assert!(from.as_i64().is_some_and(|from| from < end.0), "{from}");
}

async fn a_revoked_account_stops_alone(world: &World, platform: &impl Platform, channels: &str) {
    let part = format!("{}/main", platform.channel());
    let (replica, _) = start_and_say(world, platform, channels, || vec![platform.say("main", 1, START)]).await;
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
    let days = 2 * 24 * 3_600_000;
    let (old, now) = if platform.has_earlier() {
        (START.plus(-days), START)
    } else {
        // It is read for the first time since two days ago.
        let replica = world.replica("adapter-svc-0", channels).await;
        replica
            .says(&format!("{}/main", platform.channel()), platform.reading())
            .await;
        replica.stop().await;
        world.clock.advance(days.unsigned_abs());
        (START.plus(1_000), START.plus(days))
    };
    for number in 1..=1_000 {
        platform.say("main", number, old);
    }
    platform.say("main", 1_001, now);

    let replica = world.replica("adapter-svc-0", channels).await;
    confirmed(platform, "main", 1_001).await;
    let mut events = world.stored(1_001).await;
    events.retain(|event| event.id.adapter() != "gap");
    let fresh: Vec<&Event> = events
        .iter()
        .filter(|event| event.withheld_tags().all(|tag| tag != BACKFILLED))
        .collect();
    assert_eq!(fresh.len(), 1, "{fresh:?}");
    assert_eq!(fresh[0].timestamp, now);
    replica.stop().await;
}

async fn the_watermark_stands_as_long_as_the_stream_does_not_answer(mut events: World, platform: &impl Platform) {
    // Positions and leases are on a server of their own, which goes on.
    let positions = World::start().await;
    let (health, shutdown) = (Health::default(), ShutdownSignal::default());
    let context = positions.sink_context(&events, &health);
    let tasks = start_sources(vec![platform.source(&positions)], &context, "adapter-svc-0", &shutdown);
    says(&health, &format!("{}/main", platform.channel()), platform.reading()).await;
    let mut expected = BTreeSet::from([platform.say("main", 1, START)]);
    confirmed(platform, "main", 1).await;
    pass_time(&positions).await;
    let watermark = positions.watermark(platform.channel(), "main").await;
    assert!(watermark.is_some());

    events.nats.kill9();
    expected.extend((2..=5).map(|n| platform.say("main", n, START)));
    eventually("a message is handed over", async || platform.handed("main") > 1).await;
    let (steps, step) = WITHHELD;
    for passed in 0..=steps {
        // First it is waiting for the stream, and then it has time to do something.
        pass_time(&positions).await;
        let found = positions.watermark(platform.channel(), "main").await;
        assert_eq!(found, watermark, "after {passed} steps");
        assert_eq!(platform.confirmed("main"), 1, "after {passed} steps");
        for world in [&positions, &events] {
            world.clock.set(world.clock.now().plus(step));
        }
    }

    events.nats.restart().await;
    confirmed(platform, "main", 5).await;
    assert_ne!(positions.watermark(platform.channel(), "main").await, watermark);
    let mut stored = events.events().await;
    stored.retain(|event| event.id.adapter() != "gap");
    assert_eq!((stored.len(), ids(&stored)), (5, expected));
    shutdown.trigger();
    for task in tasks {
        task.await.expect("it ends in order");
    }
}

/// Waits until a replica has refreshed its session twice, which takes about a second and a half.
async fn pass_time(world: &World) {
    let written = async || {
        let state = world.bus.stream_state("KV_leases").await;
        state.map_or(0, |state| state.last)
    };
    let before = written().await;
    eventually("the session is refreshed", async || written().await >= before + 2).await;
}
