//! A broker stopped past its claim and continued afterwards: another finished its turn, and it cannot say a word more.

use cli::launch::service::signal;
use shared::bus::Bus;
use shared::bus::ledger::{self, AppendLedgerError};
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::wire::headers::{TURN, TraceCarrier};
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::{Record, read_all};
use tests::world::{Setup, World};

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, event, send, session};

/// Who took the session, in order: sequence of the record, epoch, broker.
async fn owners(bus: &Bus) -> Vec<(u64, u64, String)> {
    let ledger: Vec<(u64, LedgerRecord)> = read_all(bus, streams::LEDGER).await;
    let mut owners = Vec::new();
    for (sequence, record) in &ledger {
        for entry in &record.entries {
            if let LedgerEntry::Owned { epoch, broker } = entry {
                owners.push((*sequence, *epoch, broker.clone()));
            }
        }
    }

    owners
}

/// What the stopped broker would send: a record of its own epoch, after the last entry that it knows.
async fn append_as_it_would(bus: &Bus, session: &SessionRef, known: u64) -> Result<u64, AppendLedgerError> {
    let stored = bus
        .at_sequence(streams::LEDGER, known)
        .await
        .expect("the ledger")
        .expect("the entry");
    let mut record: LedgerRecord = stored.decode().expect("a record");
    record.append.counter += 1;
    ledger::append(bus, session, &record, known, &TraceCarrier::default()).await
}

/// Waits for the first answer's receipt.
async fn delivered(world: &World) {
    eventually("the owner's answer is delivered", PATIENCE, async || {
        let record = Record::read(&world.bus).await;
        if record.delivered().len() == 1 {
            Ok(())
        } else {
            Err(format!("{record:?}"))
        }
    })
    .await;
}

/// Waits until broker `stale` says that the session is not its own any more.
async fn noticed(world: &World, stale: &str) {
    eventually("the stopped broker knows", PATIENCE, async || {
        let log = world.log(stale);
        if log.contains("session has another owner; releasing the claim") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
}

/// Waits until both events are answered, once each.
async fn answered(world: &World) -> Record {
    let accepted = ["e2e:p/1", "e2e:p/2"].map(str::to_owned).into();
    eventually("both are answered once", PATIENCE, async || {
        let record = Record::read(&world.bus).await;
        let faults = record.faults(&accepted);
        if faults.is_empty() && record.turns().len() == 2 {
            Ok(record)
        } else {
            Err(faults.join("\n"))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_stopped_past_its_claim_is_refused_by_the_fence() {
    let hooks = vec![("answer.ts", ANSWER.to_owned())];
    let world = World::start(Setup {
        replicas: 2,
        hooks,
        personas: REMOTE.to_owned(),
        ..Setup::default()
    })
    .await;

    let mut agent = Agent::listen(&world.bus).await;
    let session = session("p");
    send(&world, &event("e2e:p/1", "p", "first")).await;
    let before = agent.asked().await;
    let (known, first_epoch, stale) = owners(&world.bus)
        .await
        .pop()
        .expect("an owner before anybody is asked");

    let stopped = world
        .stack
        .services
        .iter()
        .find(|running| running.instance == stale)
        .expect("a broker of ours");

    signal(stopped.pid(), "STOP");

    let after = agent.asked().await;
    assert_eq!(
        before.headers.get(TURN),
        after.headers.get(TURN),
        "the same turn is asked for again"
    );

    let (_, epoch, owner) = owners(&world.bus).await.pop().expect("an owner");
    assert!(
        epoch == first_epoch + 1 && owner != stale,
        "{owner} took it from {stale} in epoch {epoch}"
    );

    agent.answer(&after, "from the owner").await;
    delivered(&world).await;

    agent.answer(&before, "from the stale one").await;
    signal(stopped.pid(), "CONT");
    noticed(&world, &stale).await;
    let refused = append_as_it_would(&world.bus, &session, known).await;

    assert!(
        matches!(refused, Err(AppendLedgerError::FenceLost { .. })),
        "{refused:?}"
    );

    agent.serve();
    send(&world, &event("e2e:p/2", "p", "second")).await;
    let record = answered(&world).await;
    let (overtaken, ..) = owners(&world.bus)
        .await
        .into_iter()
        .find(|(_, e, _)| *e == epoch)
        .expect("the new epoch");

    let late = |(sequence, ledger): &&(u64, LedgerRecord)| *sequence > overtaken && ledger.append.epoch == first_epoch;
    assert_eq!(
        record.ledger.iter().filter(late).count(),
        0,
        "the stopped broker appended"
    );

    let said: Vec<String> = replies(&record);
    assert_eq!(said, ["from the owner", "agent: second"]);

    world.stack.stop().await;
}

fn replies(record: &Record) -> Vec<String> {
    let mut said = Vec::new();
    for entry in record.ledger.iter().flat_map(|(_, ledger)| &ledger.entries) {
        if let LedgerEntry::TurnCompleted { reply: Some(reply), .. } = entry {
            said.push(reply.content.clone());
        }
    }
    said
}
