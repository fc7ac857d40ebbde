//! Two that believe they own one session: the ledger decides, and the loser leaves no trace.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker_svc::broker::BrokerContext;
use broker_svc::error::RunSessionError;
use broker_svc::queue::claim_deadline::ClaimDeadline;
use broker_svc::queue::slot::SessionSlot;
use broker_svc::worker::{self, ClaimedSession};
use shared::bus::claim;
use shared::clock::Clock;
use shared::model::ledger::LedgerEntry;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::{ManualClock, eventually};
use shared::wire::agent::AgentReply;
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::{Headers, TURN, TraceCarrier};
use shared::wire::partition::session_part;
use shared::wire::subject;
use tokio::sync::Semaphore;

use crate::bench::{Bench, session};

const REMOTE: &str = "personas: {default: {runner: nats}}";

/// `broker`'s belief that claim `sequence` of `session` is its own, by a clock that only the test moves.
fn belief(session: &SessionRef, sequence: u64) -> (ManualClock, ClaimedSession) {
    let clock = ManualClock::at(UnixMillis(0));
    let hold = ClaimDeadline::new(Arc::new(clock.clone()), clock.monotonic(), Duration::from_secs(3));
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a slot");

    let claimed = ClaimedSession {
        session: session.clone(),
        sequence,
        carrier: TraceCarrier::default(),
        hold: Arc::new(hold),
        slot: SessionSlot::new(permit, Arc::new(Semaphore::new(1))),
        begun: Mutex::default(),
    };

    (clock, claimed)
}

/// The sequence of the one claim there is, of `session`.
async fn held_claim(bench: &Bench, session: &SessionRef) -> u64 {
    let mut pull = claim::pull(&bench.bus, session_part(session), 1);
    pull.next().await.sequence
}

fn spawn(broker: &Arc<BrokerContext>, claimed: ClaimedSession) -> tokio::task::JoinHandle<Result<(), RunSessionError>> {
    let broker = Arc::clone(broker);
    tokio::spawn(async move { worker::run(&broker, &claimed).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_owners_at_once_only_one_appends_each_turn() {
    let bench = Bench::start().await;
    let main = session("main");

    let (one, other) = (bench.broker("b1", "").await, bench.broker("b2", "").await);
    for event in 1..=20 {
        bench.send(&main, event).await;
        let sequence = held_claim(&bench, &main).await;
        let (_, first) = belief(&main, sequence);
        let (_, second) = belief(&main, sequence);
        let (first, second) = (spawn(&one, first), spawn(&other, second));

        for outcome in [first.await.expect("no panic"), second.await.expect("no panic")] {
            assert!(
                matches!(outcome, Ok(()) | Err(RunSessionError::FenceLost)),
                "{outcome:?}"
            );
        }

        assert_eq!(bench.completed(&main).await.len() as u64, event);
    }

    assert_eq!(bench.replies().await.len(), 20);
}

/// Runs one owner into the middle of a turn, lets `fate` befall it, lets another owner finish, and answers how the
/// first ended. Asserts that it left no trace.
async fn overtaken(fate: impl Fn(&ManualClock)) -> RunSessionError {
    let bench = Bench::start().await;
    let main = session("main");
    let (slow, quick) = (bench.broker("slow", REMOTE).await, bench.broker("quick", REMOTE).await);
    let mut agent = bench
        .bus
        .core_subscribe(&subject::agent("default"))
        .await
        .expect("an agent");

    bench.bus.flush().await.expect("it is known");
    bench.send(&main, 1).await;
    let sequence = held_claim(&bench, &main).await;
    let (clock, claimed) = belief(&main, sequence);
    let first = spawn(&slow, claimed);
    let asked_first = agent.next().await.expect("a question");
    let (_, claimed) = belief(&main, sequence);
    let second = spawn(&quick, claimed);

    let asked_second = agent.next().await.expect("the same question");
    assert_eq!(asked_first.headers.get(TURN), asked_second.headers.get(TURN));

    fate(&clock);
    let say = async |to: Option<String>, content: &str| {
        let answer = AgentReply::Answer {
            content: content.to_owned(),
            attachments: Vec::new(),
        };
        bench
            .bus
            .core_publish(
                &to.expect("a place to answer"),
                &Headers::new(),
                encode_payload(&answer, PayloadFormat::Json),
            )
            .await;
    };

    say(asked_second.reply, "from the owner").await;
    second.await.expect("no panic").expect("the owner finishes");
    let before = bench.ledger(&main).await;
    say(asked_first.reply, "from the stale one").await;
    let ended = first.await.expect("no panic").expect_err("it is not the owner");

    assert_eq!(bench.ledger(&main).await, before, "it appended nothing");

    let said: Vec<String> = bench.replies().await.into_iter().map(|reply| reply.content).collect();
    assert_eq!(said, ["from the owner"]);

    let completed = bench.entries(&main).await;
    assert_eq!(
        completed
            .iter()
            .filter(|entry| matches!(entry, LedgerEntry::TurnCompleted { .. }))
            .count(),
        1
    );

    eventually("the owner gave the claim back", async || bench.claims().await == 0).await;
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_stopped_past_its_deadline_stops_by_its_own_clock() {
    let ended = overtaken(|clock| clock.advance(3_100)).await;
    assert!(matches!(ended, RunSessionError::Stale), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_does_not_know_better_is_stopped_by_the_fence() {
    let ended = overtaken(|_| {}).await;
    assert!(matches!(ended, RunSessionError::FenceLost), "{ended}");
}
