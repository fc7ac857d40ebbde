//! Lost wake-ups: whoever dies between two publishes, the sweeper brings every dispatch to its turn.
//!
//! For the moment between two publishes to last, `CLAIMS` takes nothing in: whoever claims then tries again and again,
//! and is killed while it does.

use std::time::Duration;

use shared::bus::claim::{self, ClaimedKey};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::{streams, topology};
use tests::eventually::eventually;
use tests::prometheus;
use tests::record::read_all;
use tests::world::{Setup, World};

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, dispatch, event, send, session};

/// What is promised, from when the server had the dispatch to when it had the beginning of its turn.
const HEALED_WITHIN: Duration = Duration::from_secs(10);
/// What a busy machine may make of it.
const AT_MOST: Duration = Duration::from_secs(60);
/// Dispatches that lose their wake-up at once.
const LOST: u64 = 9;
/// Rounds of them, until one is as fast as promised.
const ROUNDS: u64 = 3;

/// Whether `CLAIMS` takes in what is published to it.
async fn claims_are_taken(bus: &Bus, taken: bool) {
    let mut topology = topology(1);
    let claims = topology
        .streams
        .iter_mut()
        .find(|stream| stream.name == streams::CLAIMS);
    if !taken {
        claims.expect("CLAIMS").subjects = vec!["nexus.deaf.>".to_owned()];
    }
    bus.ensure_topology(&topology, true)
        .await
        .expect("the server changes it");
}

/// Stores the dispatch as a publisher does that dies before it claims; answers when the server had it.
async fn store(bus: &Bus, dispatch: &Dispatch) -> UnixMillis {
    let out = OutgoingMessage::new(subject::dispatch(&dispatch.target), dispatch).msg_id(dispatch.id.to_string());
    let sequence = bus.publish(out).await.expect("stored").sequence;
    let stored = bus
        .at_sequence(streams::DISPATCHES, sequence)
        .await
        .expect("the stream");
    stored.expect("the dispatch").published_at
}

/// When the server stored each beginning of a turn that answers `dispatch`.
async fn begun(bus: &Bus, dispatch: &Dispatch) -> Vec<UnixMillis> {
    let subject = subject::ledger(&dispatch.target);
    let stored = bus
        .read_history(streams::LEDGER, &subject, 1, 256)
        .await
        .expect("the ledger");

    let begins = |entry: &LedgerEntry| {
        matches!(entry, LedgerEntry::TurnStarted { dispatches, .. }
            if dispatches.iter().any(|one| one.id == dispatch.id))
    };
    let records = stored.into_iter().map(|message| {
        let record: LedgerRecord = message.decode().expect("a record");
        (message.published_at, record)
    });

    records
        .filter(|(_, record)| record.entries.iter().any(begins))
        .map(|(at, _)| at)
        .collect()
}

/// How long after `since` the turn of `dispatch` began, by the server's clock.
async fn healed(world: &World, dispatch: &Dispatch, since: UnixMillis) -> Duration {
    let at = eventually("the turn", PATIENCE, async || {
        let begun = begun(&world.bus, dispatch).await;
        begun.first().copied().ok_or_else(|| world.logs())
    })
    .await;
    let took = Duration::from_millis(at.since(since).max(0).unsigned_abs());
    println!("{}: healed after {} ms", dispatch.event_id, took.as_millis());
    assert!(took < AT_MOST, "{} took {took:?}\n{}", dispatch.event_id, world.logs());
    took
}

/// Claims that are there, by the leader's word.
async fn claims(bus: &Bus) -> u64 {
    bus.stream_state(streams::CLAIMS).await.expect("CLAIMS").messages
}

/// The owner of a session gives it back because another waits for the only slot, and dies before it claims it again for
/// what is left in it. Answers that, and what was left in the other.
async fn owner_dies(world: &mut World, agent: &mut Agent) -> [Dispatch; 2] {
    let [open, left] = [1, 2].map(|number| dispatch("released", number));
    let other = dispatch("other", 1);
    store(&world.bus, &open).await;
    let none = TraceCarrier::default();
    claim::publish(&world.bus, &open.target, &none).await.expect("claimed");
    let question = agent.asked().await;
    store(&world.bus, &left).await;

    let again = claim::publish(&world.bus, &left.target, &none).await;
    assert_eq!(again.expect("answered"), ClaimedKey::AlreadyHeld);

    store(&world.bus, &other).await;
    claim::publish(&world.bus, &other.target, &none).await.expect("claimed");
    eventually("the broker knows that another waits", PATIENCE, async || {
        let broker = world.stack.service("broker-svc", 0).expect("a broker").address("http");
        let url = format!("http://{}/metrics", broker.map_err(|error| error.to_string())?);
        let answer = cli::http::client().expect("a client").get(url).send().await;
        let text = answer.map_err(|error| error.to_string())?.text().await;
        let samples = prometheus::parse(&text.map_err(|error| error.to_string())?)?;
        let pending = samples
            .iter()
            .find(|sample| sample.name == "nexus_broker_claims_pending");

        pending
            .filter(|sample| sample.value >= 2.0)
            .map(drop)
            .ok_or_else(|| world.logs())
    })
    .await;

    claims_are_taken(&world.bus, false).await;
    agent.answer(&question, "done").await;
    eventually("the session is given back", PATIENCE, async || {
        let claims = claims(&world.bus).await;
        (claims == 1)
            .then_some(())
            .ok_or_else(|| format!("{claims} claims\n{}", world.logs()))
    })
    .await;

    world.stack.service("broker-svc", 0).expect("a broker").kill();
    assert!(
        begun(&world.bus, &left).await.is_empty(),
        "it was given back with something left"
    );

    claims_are_taken(&world.bus, true).await;
    [left, other]
}

/// hook-svc stores the dispatch of an event, and dies before it claims its session.
async fn publisher_dies(world: &mut World) -> (Dispatch, UnixMillis) {
    claims_are_taken(&world.bus, false).await;
    send(world, &event("e2e:evaluated/1", "evaluated", "1")).await;
    let subject = subject::dispatch(&session("evaluated"));
    let stored = eventually("the dispatch is stored", PATIENCE, async || {
        let stored = world.bus.last_on_subject(streams::DISPATCHES, &subject).await;
        stored.ok().flatten().ok_or_else(|| world.logs())
    })
    .await;

    world.stack.service("hook-svc", 0).expect("a hook-svc").kill();
    let claim = subject::claim(&session("evaluated"));
    let claimed = world
        .bus
        .last_on_subject(streams::CLAIMS, &claim)
        .await
        .expect("CLAIMS");

    assert!(claimed.is_none(), "it died before it claimed");

    claims_are_taken(&world.bus, true).await;
    (stored.decode().expect("a dispatch"), stored.published_at)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dispatch_comes_to_its_turn_whoever_dies_between_two_publishes() {
    let one = |key: &str| (format!("NEXUS__BROKER__{key}"), "1".to_owned());
    let mut world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        personas: REMOTE.to_owned(),
        environment: vec![one("MAX_ACTIVE_TURNS"), one("FAIRNESS_TURNS")],
        without: vec!["delivery-svc", "scheduler-svc"],
        ..Setup::default()
    })
    .await;

    let mut agent = Agent::listen(&world.bus).await;

    let left = owner_dies(&mut world, &mut agent).await;
    agent.serve();
    world.stack.launch("broker-svc", 0).expect("it starts again");
    world.stack.ready().await.expect("the broker comes up");

    let up = SystemClock.now();
    for dispatch in &left {
        healed(&world, dispatch, up).await;
    }

    let (dispatch, since) = publisher_dies(&mut world).await;
    healed(&world, &dispatch, since).await;
    world.stack.launch("hook-svc", 0).expect("it starts again");
    send(&world, &event("e2e:evaluated/2", "evaluated", "2")).await;

    eventually("the next one has its turn", PATIENCE, async || {
        let subject = subject::dispatch(&session("evaluated"));
        let last = world.bus.last_on_subject(streams::DISPATCHES, &subject).await;
        let last: Dispatch = last.ok().flatten().expect("a dispatch").decode().expect("a dispatch");
        let begun = begun(&world.bus, &last).await;
        let is_next = last.event_id.as_str() == "e2e:evaluated/2" && begun.len() == 1;
        is_next.then_some(()).ok_or_else(|| world.logs())
    })
    .await;

    fast_enough(&world).await;
    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
    for (_, dispatch) in &dispatches {
        assert_eq!(begun(&world.bus, dispatch).await.len(), 1, "{}", dispatch.event_id);
    }

    world.stack.stop().await;
}

/// Some dispatches without claims, in sessions that nobody knows and in one that is known: half of them have their turns
/// within what is promised, in one round of some at least.
async fn fast_enough(world: &World) {
    let mut told = Vec::new();
    for round in 0..ROUNDS {
        let peer = |number: u64| {
            if number == 0 {
                "released".to_owned()
            } else {
                format!("lost-{round}-{number}")
            }
        };

        let mut lost = Vec::new();
        for number in 0..LOST {
            let dispatch = dispatch(&peer(number), 100 * (round + 1) + number);
            let since = store(&world.bus, &dispatch).await;
            lost.push((dispatch, since));
        }

        let mut took = Vec::new();
        for (dispatch, since) in &lost {
            took.push(healed(world, dispatch, *since).await);
        }

        took.sort_unstable();
        let median = took[took.len() / 2];
        if median < HEALED_WITHIN {
            return;
        }

        told.push(median);
    }

    panic!("medians of {told:?}, promised are {HEALED_WITHIN:?}\n{}", world.logs());
}
