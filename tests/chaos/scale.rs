//! Replicas of hook-svc and broker-svc are killed, added and taken away under load: each event is dispatched and answered
//! once, the events of a key in their order, and no key waits long for its owner to change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;
use shared::wire::headers::CAUSATION;
use tests::eventually::eventually;
use tests::load::{Gateways, Load, send};
use tests::tally::Tally;
use tests::world::{Setup, World};

use crate::killer::{Choices, tell};
use crate::kills::{ANSWER, SETTLE, is_long, settled_tally, told_number};

/// The services whose replicas come and go.
const SCALED: [&str; 2] = ["hook-svc", "broker-svc"];
/// Replicas of each at the beginning and at the end.
const FEW: u16 = 2;
/// Kills in a round, shortly after one another.
const KILLS: usize = 2;
/// Variable that says how many events a second the long form sends.
const RATE: &str = "NEXUS_CHAOS_RATE";
/// Events a second of the long form, if the variable says nothing.
const USUAL_RATE: u32 = 600;
/// Memory of the server of the long form: it knows each record of an evaluation and each delivery by a subject of its own.
const SERVER_MEMORY: &str = "4GiB";
/// An event that arrives further than this from every kill must not wait for one, in milliseconds.
const APART_MS: i64 = 4_000;
/// The least share of events that are judged by how long they waited.
const JUDGED: f64 = 0.1;
/// Most events that waited too long and are reported.
const MOST_TOLD: usize = 10;

/// What is done to the replicas, and under which load.
#[derive(Debug)]
struct Course {
    /// Replicas of each scaled service from some moment of each round on.
    replicas: Vec<u16>,
    /// Events, which last as long as all rounds.
    events: u64,
    /// Events a second.
    rate: u32,
    /// Conversations.
    keys: u64,
    /// The longest that an event far from every kill may wait for its dispatch.
    longest_wait: Duration,
    /// The longest that it may wait for its reply, its dispatch included.
    longest_reply: Duration,
    /// The least share of kills during which events came.
    under_load: f64,
    /// How long the streams may be read once nothing waits.
    reading: Duration,
    seed: u64,
}

impl Course {
    /// Six kills in three rounds, two and three replicas. The bound is wide, and the load light: the suite runs on busy machines
    /// too, on which replicas lose their leases without a kill.
    fn short() -> Self {
        Self {
            replicas: vec![3, 3, FEW],
            events: 1_800,
            rate: 50,
            keys: 100,
            longest_wait: Duration::from_secs(60),
            longest_reply: Duration::from_secs(60),
            under_load: 0.0,
            reading: SETTLE,
            seed: 17,
        }
    }

    /// A hundred kills in fifty rounds; two, four, eight, four and two replicas. With [`USUAL_RATE`] it lasts 28 minutes, and
    /// wants a release build of the services ([`tests::world::told_binaries`]).
    fn long() -> Self {
        let replicas = [(FEW, 5), (4, 15), (8, 10), (4, 15), (FEW, 5)];
        Self {
            replicas: replicas
                .into_iter()
                .flat_map(|(count, rounds)| std::iter::repeat_n(count, rounds))
                .collect(),
            events: 1_000_000,
            rate: told_rate(),
            keys: 1_000,
            longest_wait: Duration::from_secs(4),
            longest_reply: Duration::from_secs(4),
            under_load: 0.9,
            reading: Duration::from_secs(3_600),
            seed: 18,
        }
    }

    /// How long a round lasts.
    fn round(&self) -> Duration {
        let all = Duration::from_secs_f64(self.events as f64 / f64::from(self.rate));
        all.div_f64(self.replicas.len() as f64)
    }

    fn load(&self) -> Load {
        Load {
            events: self.events,
            rate: self.rate,
            sessions: self.keys,
            copies: 1,
        }
    }
}

/// Events a second of the long form.
fn told_rate() -> u32 {
    let rate = told_number(RATE, u64::from(USUAL_RATE));
    u32::try_from(rate).unwrap_or_else(|_| panic!("{RATE}={rate}: a number of events a second"))
}

/// The conversation of an event of the load, and its number.
fn key_of(event: &str) -> Option<(u64, u64)> {
    let (key, number) = event.strip_prefix("chaos:")?.split_once('/')?;
    Some((key.parse().ok()?, number.parse().ok()?))
}

/// How many of `events` come after a later one of their conversation.
fn inversions<'a>(events: impl Iterator<Item = &'a str>) -> usize {
    let mut last = BTreeMap::new();
    let is_late = |(key, number): &(u64, u64)| {
        let newest = last.entry(*key).or_insert(*number);
        let is_late = *number < *newest;
        *newest = *number.max(newest);
        is_late
    };
    events.filter_map(key_of).filter(is_late).count()
}

/// When an event arrived and when it had gone on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The event's sequence.
    event: u64,
    pub(crate) arrived: UnixMillis,
    gone_on: UnixMillis,
}

impl Wait {
    pub(crate) const fn ms(&self) -> i64 {
        self.gone_on.0 - self.arrived.0
    }
}

/// The waits of events that arrived further than [`APART_MS`] from every kill, the shortest first.
fn judged_waits(waits: impl Iterator<Item = Wait>, kills: &[UnixMillis]) -> Vec<Wait> {
    let is_apart = |wait: &Wait| kills.iter().all(|kill| (kill.0 - wait.arrived.0).abs() > APART_MS);
    let mut judged: Vec<Wait> = waits.filter(is_apart).collect();
    judged.sort_by_key(Wait::ms);
    judged
}

/// Those of `waits`, the shortest first, that were longer than `most`, in words, the longest first: which key, which event of
/// it, when, and how far from the nearest kill.
fn too_long(waits: &[Wait], most: Duration, keys: &BTreeMap<u64, (u64, u64)>, kills: &[UnixMillis]) -> Vec<String> {
    let most = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
    let longest_first = waits.iter().rev().take_while(|wait| wait.ms() > most);
    let described = longest_first.map(|wait| {
        let event = keys.get(&wait.event).map_or_else(
            || format!("event {}", wait.event),
            |(key, number)| format!("key {key}, its event {number} (sequence {})", wait.event),
        );
        let from_kills = kills.iter().map(|kill| wait.arrived.0 - kill.0);
        let nearest = from_kills.min_by_key(|ms| ms.abs()).unwrap_or(i64::MAX);
        format!(
            "{event}: arrived at {}, {nearest} ms after the nearest kill, and waited {} ms until {}",
            wait.arrived.0,
            wait.ms(),
            wait.gone_on.0
        )
    });
    described.take(MOST_TOLD).collect()
}

/// The events that the load's replies answered, in the order in which a plain subscriber received them, whatever account
/// a reply leaves by.
pub(crate) type Heard = Arc<Mutex<Vec<String>>>;

pub(crate) async fn listen(bus: &Bus) -> Heard {
    let heard = Heard::default();
    let mut replies = bus.core_subscribe("nexus.out.*.*").await.expect("subscribed");
    let noted = Arc::clone(&heard);

    tokio::spawn(async move {
        while let Some(reply) = replies.next().await {
            let event = reply
                .headers
                .get(CAUSATION)
                .expect("a reply names its event")
                .to_owned();
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    });

    bus.flush().await.expect("flushed");
    heard
}

/// Kills a replica of a scaled service without warning and starts it again, all by chance; answers when it was.
async fn kill_one(world: &mut World, choices: &mut Choices) -> UnixMillis {
    let name = SCALED[usize::try_from(choices.below(2)).unwrap_or(0)];
    let replica = choices.below(u64::from(world.replicas(name)));
    let replica = u16::try_from(replica).unwrap_or(0);

    pause(Duration::from_millis(choices.below(1_000))).await;
    let running = world.stack.service(name, replica);
    running.expect("replicas have successive numbers").kill();
    let killed = SystemClock.now();

    pause(Duration::from_millis(choices.below(200))).await;
    world.stack.launch(name, replica).expect("it starts again");
    killed
}

/// Kills and scales, round after round; answers when each kill was.
async fn play(world: &mut World, course: &Course) -> Vec<UnixMillis> {
    let mut choices = Choices::new(course.seed);
    let mut kills = Vec::new();

    let begun = SystemClock.monotonic();
    for (number, count) in (1..).zip(&course.replicas) {
        // An event that is in hand at three unclean ends of its owner is given up, as promised: it has to have a chance after the
        // two of the round before.
        world.stack.ready().await.expect("what was killed comes up again");
        for _ in 0..KILLS {
            kills.push(kill_one(world, &mut choices).await);
        }

        let rest = course.round().saturating_sub(Duration::from_secs(KILLS as u64 + 1));
        let some_time = choices.below((u64::try_from(rest.as_millis()).unwrap_or(0) / 2).max(1));
        pause(Duration::from_millis(some_time)).await;
        for name in SCALED {
            world.scale(name, *count).await;
        }

        let end = begun + course.round() * number;
        pause(end.saturating_duration_since(SystemClock.monotonic())).await;
    }

    kills
}

/// When the events of the load arrived, were dispatched and were answered, by the server's clock.
#[derive(Debug, Default)]
pub(crate) struct Times {
    arrived: BTreeMap<u64, UnixMillis>,
    /// The conversation of each, and its number in the load.
    keys: BTreeMap<u64, (u64, u64)>,
    pub(crate) dispatched: BTreeMap<u64, UnixMillis>,
    pub(crate) answered: BTreeMap<u64, UnixMillis>,
}

impl Times {
    pub(crate) fn of(tally: Tally) -> Self {
        let dispatches = || tally.dispatches.all.iter();
        let events: BTreeMap<_, _> = dispatches().map(|one| (one.id, one.event_sequence)).collect();
        let keys = dispatches().filter_map(|one| Some((one.event_sequence, key_of(&one.event)?)));
        let keys = keys.collect();
        let mut answered = BTreeMap::new();
        for (turn, dispatches) in &tally.turns.completed {
            if let Some(at) = tally.deliveries.stored_at.get(turn) {
                let answers = dispatches.iter().filter_map(|dispatch| events.get(dispatch));
                answered.extend(answers.map(|event| (*event, *at)));
            }
        }

        Self {
            arrived: tally.events.stored_at,
            keys,
            dispatched: tally.dispatches.stored_at,
            answered,
        }
    }

    /// Whether events of the load came at `instant` and later.
    fn is_loaded(&self, instant: UnixMillis) -> bool {
        let dispatched = self.dispatched.last_key_value();
        let last = dispatched.and_then(|(event, _)| self.arrived.get(event));
        last.is_some_and(|last| instant <= *last)
    }

    /// How long each event waited until the moment that `later` has for it.
    pub(crate) fn waits(&self, later: &BTreeMap<u64, UnixMillis>) -> impl Iterator<Item = Wait> {
        later.iter().filter_map(|(event, gone_on)| {
            Some(Wait {
                event: *event,
                arrived: *self.arrived.get(event)?,
                gone_on: *gone_on,
            })
        })
    }
}

/// Waits until the subscriber has received `count` replies, and answers the events that they are for.
pub(crate) async fn all_heard(world: &World, heard: &Heard, count: u64) -> Vec<String> {
    eventually("each event has its reply", SETTLE, async || {
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.len() as u64 >= count {
            Ok(heard.clone())
        } else {
            Err(format!("{} of {count}\n{}", heard.len(), world.logs()))
        }
    })
    .await
}

/// Dispatches and replies: one for each event, in the order of their conversation.
pub(crate) fn check_order(tally: &Tally, heard: &[String], events: u64) {
    let dispatched = tally.dispatches.all.iter().map(|dispatch| dispatch.event.as_str());
    assert_eq!(tally.dispatches.all.len() as u64, events, "one dispatch per event");
    assert_eq!(inversions(dispatched), 0, "dispatches out of order");

    let answered: BTreeSet<&String> = heard.iter().collect();
    assert_eq!(answered.len() as u64, events, "events that are answered");
    assert_eq!(heard.len(), answered.len(), "replies that came twice");
    assert_eq!(inversions(heard.iter().map(String::as_str)), 0, "replies out of order");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_come_and_go_cost_no_event_and_no_order() {
    let course = if is_long() { Course::long() } else { Course::short() };
    let load = course.load();

    let mut world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        server_memory: is_long().then(|| SERVER_MEMORY.to_owned()),
        ..Setup::default()
    })
    .await;
    for name in SCALED {
        world.scale(name, FEW).await;
    }
    world.stack.ready().await.expect("two replicas of each start");

    let heard = listen(&world.bus).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);
    let sending = tokio::spawn(send(load, gateways));
    let kills = play(&mut world, &course).await;

    let accepted = sending.await.expect("the load was sent");
    world.stack.ready().await.expect("everything comes up again");
    assert_eq!(SCALED.map(|name| world.replicas(name)), [FEW, FEW]);

    let tally = settled_tally(&world, &accepted, course.reading).await;
    let heard = all_heard(&world, &heard, load.events).await;
    check_order(&tally, &heard, load.events);

    let times = Times::of(tally);
    let under_load = kills.iter().filter(|kill| times.is_loaded(**kill)).count();
    let waits = judged_waits(times.waits(&times.dispatched), &kills);
    let replies = judged_waits(times.waits(&times.answered), &kills);
    let longest = waits.last().expect("some events arrive far from every kill");
    let share = waits.len() as f64 / load.events as f64;

    println!(
        "{} kills, {under_load} of them under load, 2 to {} replicas of {SCALED:?}: {} events of {} keys, none lost, \
         doubled or out of order; {} arrived further than {APART_MS} ms from every kill and waited at most {} ms for their \
         dispatch (median {}), and {} ms for their reply",
        kills.len(),
        course.replicas.iter().max().unwrap_or(&FEW),
        load.events,
        load.sessions,
        waits.len(),
        longest.ms(),
        waits[waits.len() / 2].ms(),
        replies.last().map_or(0, Wait::ms),
    );

    assert!(
        under_load as f64 >= course.under_load * kills.len() as f64,
        "only {under_load} of {} kills were while events came",
        kills.len()
    );
    assert!(
        share >= JUDGED,
        "only {share} of the events arrived far from every kill"
    );
    assert_eq!(replies.len(), waits.len(), "events that are judged by their replies");
    for (what, waits, most) in [
        ("dispatch", &waits, course.longest_wait),
        ("reply", &replies, course.longest_reply),
    ] {
        let late = too_long(waits, most, &times.keys, &kills);
        assert!(
            late.is_empty(),
            "events that waited for their {what} for more than {most:?}:\n{}\n{}",
            late.join("\n"),
            world.logs()
        );
    }
}

#[test]
fn only_events_far_from_every_kill_are_judged() {
    let wait = |event, arrived, gone_on| Wait {
        event,
        arrived: UnixMillis(arrived),
        gone_on: UnixMillis(gone_on),
    };
    let waits = [
        wait(1, 10_000, 19_000),
        wait(2, 15_001, 16_001),
        wait(3, 5_999, 6_999),
        wait(4, 30_000, 30_010),
    ];
    let judged = judged_waits(waits.into_iter(), &[UnixMillis(10_000), UnixMillis(11_001)]);
    let judged: Vec<_> = judged.iter().map(|wait| (wait.event, wait.ms())).collect();
    assert_eq!(judged, [(4, 10), (3, 1_000)]);
}

#[test]
fn an_event_that_waited_too_long_is_reported_with_its_key_and_times() {
    let wait = |event, waited: i64| Wait {
        event,
        arrived: UnixMillis(20_000),
        gone_on: UnixMillis(20_000 + waited),
    };
    let waits = [wait(1, 10), wait(2, 4_000), wait(3, 4_001)];
    let keys = BTreeMap::from([(3, (7, 12))]);
    let late = too_long(
        &waits,
        Duration::from_secs(4),
        &keys,
        &[UnixMillis(14_000), UnixMillis(40_000)],
    );
    assert_eq!(
        late,
        [
            "key 7, its event 12 (sequence 3): arrived at 20000, 6000 ms after the nearest kill, and waited 4001 ms until 24001"
        ]
    );
}

#[test]
fn an_inversion_is_within_a_key() {
    let events = [
        "chaos:1/1",
        "chaos:2/2",
        "chaos:1/5",
        "chaos:2/0",
        "chaos:1/3",
        "chaos:1/4",
        "other:1/0",
    ];
    assert_eq!(inversions(events.into_iter()), 3);
}
