//! A turn whose dispatch `DISPATCHES` has lost: its dead letter, redriven with the command, leads to one turn.

use serde_json::Value;
use shared::bus::{OutgoingMessage, claim};
use shared::model::invocation::EventInvocations;
use shared::model::ledger::{DropReason, LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::wire::headers::{TURN, TraceCarrier};
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{Setup, World, without_ticks};

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, delivered, delivers, event, send, session};

/// The entries of the session's ledger.
async fn entries(world: &World, of: &SessionRef) -> Vec<LedgerEntry> {
    let subject = shared::wire::subject::ledger(of);
    let stored = world.bus.read_history(streams::LEDGER, &subject, 1, 256).await;
    let records = stored.expect("the ledger").into_iter();
    let decode = |stored: shared::bus::StoredMessage| stored.decode::<LedgerRecord>().expect("a record").entries;
    records.flat_map(decode).collect()
}

/// How many turns have begun.
fn begun(entries: &[LedgerEntry]) -> usize {
    let begins = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::TurnStarted { .. });
    entries.iter().filter(begins).count()
}

/// The dead letters with `reason`, as the command lists them.
async fn letters(world: &World, reason: &str) -> Vec<Value> {
    let listed = world.json(&["dlq", "list"]).await;
    let listed = listed.as_array().cloned().expect("a list");
    let of_reason = |one: &Value| one["letter"]["reason"] == reason;
    listed.into_iter().filter(of_reason).collect()
}

/// Kills broker and hook-svc under a turn, empties `DISPATCHES`, and starts the broker, which gives the turn up. Returns the
/// number of its dead letter.
async fn lost_under_its_turn(world: &mut World, of: &SessionRef) -> String {
    eventually("the event has its record", PATIENCE, async || {
        let records: Vec<(u64, EventInvocations)> = read_all(&world.bus, streams::INVOCATIONS).await;
        let event = records.iter().any(|(_, record)| record.event_id.as_str() == "e2e:p/1");
        event.then_some(()).ok_or_else(|| world.logs())
    })
    .await;
    for name in ["broker-svc", "hook-svc"] {
        world.stack.service(name, 0).expect("a service").kill();
    }
    for stream in [streams::DISPATCHES, streams::CLAIMS] {
        world.bus.purge_subject(stream, ">").await.expect("emptied");
    }

    world.stack.launch("broker-svc", 0).expect("it starts again");
    let claimed = claim::publish(&world.bus, of, &TraceCarrier::default()).await;
    claimed.expect("a claim");
    let letter = eventually("the turn is given up", PATIENCE, async || {
        let found = letters(world, "dispatch_lost").await.pop();
        found.ok_or_else(|| world.logs())
    })
    .await;

    assert_eq!(letter["letter"]["service"], "broker-svc");
    assert_eq!(letter["letter"]["redrive_subject"], "nexus.event.e2e.default.p");
    letter["number"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_letter_of_a_lost_dispatch_is_redriven_and_leads_to_one_turn() {
    let mut world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        personas: REMOTE.to_owned(),
        environment: vec![
            ("NEXUS__BROKER__LOST_DISPATCH_MS".to_owned(), "1000".to_owned()),
            without_ticks(),
        ],
        ..Setup::default()
    })
    .await;
    let mut agent = Agent::listen(&world.bus).await;
    let of = session("p");
    send(&world, &event("e2e:p/1", "p", "please pay")).await;
    let former = agent.asked().await;
    let number = lost_under_its_turn(&mut world, &of).await;
    let stored = world
        .bus
        .at_sequence(streams::DLQ, number.parse().expect("a number"))
        .await;
    let letter = stored.expect("readable").expect("the letter");

    // hook-svc makes the dispatch again when it is back, too late: it is held, and the operator decides for the letter.
    world.stack.launch("hook-svc", 0).expect("it starts again");
    let held = eventually("the late dispatch is held", PATIENCE, async || {
        let held = world.json(&["recover", "list"]).await;
        let id = held[0]["id"].as_str().map(str::to_owned);
        id.ok_or_else(|| format!("{held}\n{}", world.logs()))
    })
    .await;
    world.words(&["dlq", "redrive", &number]).await;

    let asked = agent.asked().await;
    // The id of a turn follows from its dispatch, so that whatever is said in both is delivered once.
    assert_eq!(asked.headers.get(TURN), former.headers.get(TURN));
    assert_eq!(begun(&entries(&world, &of).await), 2);
    agent.answer(&asked, "after all").await;
    delivers(&world, "after all").await;
    assert_eq!(
        letters(&world, "dispatch_lost").await,
        Vec::<Value>::new(),
        "it is settled"
    );
    let again = world.words(&["dlq", "redrive", &number]).await;
    assert!(again.contains("as before"), "it was done once: {again}");

    // The same letter in a DLQ that was restored without its records: it is redriven once more.
    let copy = OutgoingMessage::raw(letter.subject, letter.headers, letter.payload).msg_id("once more");
    let number = world.bus.publish(copy).await.expect("stored").sequence.to_string();
    world.words(&["dlq", "redrive", &number]).await;
    eventually("its dispatch is recognised", PATIENCE, async || {
        let entries = entries(&world, &of).await;
        let repeated = |entry: &LedgerEntry| {
            let LedgerEntry::DispatchDropped { reason, .. } = entry else {
                return false;
            };
            [DropReason::Duplicate, DropReason::Repeated].contains(reason)
        };
        let is_known = entries.iter().any(repeated);
        is_known
            .then_some(())
            .ok_or_else(|| format!("{entries:?}\n{}", world.logs()))
    })
    .await;

    world.words(&["recover", "skip", &held]).await;
    assert_eq!(
        begun(&entries(&world, &of).await),
        2,
        "the lost one and the redriven one"
    );
    assert_eq!(delivered(&world).await, ["after all"]);
    assert_eq!(world.json(&["dlq", "list"]).await, serde_json::json!([]));
    world.stack.stop().await;
}
