//! Lost wake-ups: whoever dies between two publishes, the sweeper brings every dispatch to its turn.

use std::time::Duration;

use shared::bus::claim::{self, Claimed};
use shared::bus::{Bus, Outgoing};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, dispatch, session};

/// What is promised.
const HEALED_WITHIN: Duration = Duration::from_secs(10);
/// What eleven processes on two busy cores may add to it.
const MARGIN: Duration = Duration::from_secs(20);

/// Stores the dispatch as a publisher does that dies before it claims; answers when the server had it.
async fn store(bus: &Bus, dispatch: &Dispatch) -> UnixMillis {
    let out = Outgoing::new(subject::dispatch(&dispatch.target), dispatch).msg_id(dispatch.id.to_string());
    let sequence = bus.publish(out).await.expect("stored").sequence;
    let stored = bus
        .at_sequence(streams::DISPATCHES, sequence)
        .await
        .expect("the stream");
    stored.expect("the dispatch").published_at
}

/// When the server stored the end of the turn that answers `dispatch`.
async fn completed(bus: &Bus, dispatch: &Dispatch) -> Option<UnixMillis> {
    let subject = subject::ledger(&dispatch.target);
    let stored = bus
        .history(streams::LEDGER, &subject, 1, 256)
        .await
        .expect("the ledger");
    let mut turns = Vec::new();
    for message in stored {
        let record: LedgerRecord = message.decode().expect("a record");
        for entry in &record.entries {
            if let LedgerEntry::TurnStarted { turn, dispatches, .. } = entry
                && dispatches.iter().any(|one| one.id == dispatch.id)
            {
                turns.push(*turn);
            }
            if let LedgerEntry::TurnCompleted { turn, .. } = entry
                && turns.contains(turn)
            {
                return Some(message.published_at);
            }
        }
    }
    None
}

/// Waits for the turn of `dispatch` and checks that it came in time after `since`.
async fn healed(world: &World, dispatch: &Dispatch, since: UnixMillis) {
    let done = eventually("the turn", PATIENCE, async || {
        completed(&world.bus, dispatch).await.ok_or_else(|| world.logs())
    })
    .await;
    let took = Duration::from_millis(done.since(since).max(0).unsigned_abs());
    println!("{}: healed after {} ms", dispatch.event_id, took.as_millis());
    assert!(
        took < HEALED_WITHIN + MARGIN,
        "{} took {took:?}\n{}",
        dispatch.event_id,
        world.logs()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dispatch_comes_to_its_turn_whoever_dies_between_two_publishes() {
    let hooks = vec![("answer.ts", ANSWER.to_owned())];
    let mut world = World::start(Setup {
        replicas: 2,
        hooks,
        personas: REMOTE.to_owned(),
        ..Setup::default()
    })
    .await;
    let mut agent = Agent::listen(&world.bus).await;

    // The owner holds a turn open, a second dispatch waits behind it under the same claim.
    let (open, waiting) = (dispatch("released", 1), dispatch("released", 2));
    store(&world.bus, &open).await;
    claim::publish(&world.bus, &open.target, &Carrier::default())
        .await
        .expect("claimed");
    agent.asked().await;
    store(&world.bus, &waiting).await;
    let again = claim::publish(&world.bus, &waiting.target, &Carrier::default())
        .await
        .expect("answered");
    assert_eq!(again, Claimed::AlreadyHeld);
    // It gives the claim back, and dies before it looks once more.
    for replica in 0..2 {
        world.stack.service("broker-svc", replica).expect("a broker").kill();
    }
    let claims = subject::claim(&session("released"));
    let held = world
        .bus
        .last_on_subject(streams::CLAIMS, &claims)
        .await
        .expect("the stream")
        .expect("the claim");
    assert!(
        world
            .bus
            .delete_message(streams::CLAIMS, held.sequence)
            .await
            .expect("the stream")
    );
    agent.serve();
    for replica in 0..2 {
        world.stack.launch("broker-svc", replica).expect("it starts again");
    }
    world.stack.ready().await.expect("the brokers come up");
    let up = SystemClock.now();
    healed(&world, &open, up).await;
    healed(&world, &waiting, up).await;

    // A publisher dies between dispatch and claim: in a session that nobody knows, and in one that is known.
    for peer in ["unclaimed", "released"] {
        let lost = dispatch(peer, 3);
        let since = store(&world.bus, &lost).await;
        healed(&world, &lost, since).await;
    }
    world.stack.stop().await;
}
