//! Users of the bus: an agent's turn works, and everything that would make it its own master is refused.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage, ReadStreamError, RequestError};
use shared::clock::{Clock as _, SystemClock};
use shared::model::approval_api::{ApprovalList, ListApprovals};
use shared::model::intent::service::{IntentList, ListIntents};
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord};
use shared::wire::headers::Headers;
use shared::wire::rights::BusRole;
use shared::wire::subject;
use shared::wire::topology::{streams, topology};
use tests::eventually::eventually;
use tests::record::Record;
use tests::world::{Setup, World};
use tokio::time::timeout;

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, event, send, session};

/// How long is waited for an answer that does not come.
const SILENCE: Duration = Duration::from_secs(2);

/// Writes down in the ledger of `p`'s session what nobody has done.
fn forged() -> OutgoingMessage {
    let record = LedgerRecord {
        append: AppendId {
            broker: "mallory".to_owned(),
            epoch: 99,
            counter: 1,
        },
        at: SystemClock.now(),
        held_ms: 0,
        entries: vec![LedgerEntry::SessionReset {
            reason: "mine now".to_owned(),
        }],
    };

    OutgoingMessage::new(subject::ledger(&session("p")), &record)
}

async fn connected(world: &World, role: BusRole) -> Bus {
    shared::testing::connect(&world.stack.nats_config(role), role.name()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_answers_and_can_do_nothing_else() {
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        personas: REMOTE.to_owned(),
        users: true,
        ..Setup::default()
    })
    .await;

    let bus = connected(&world, BusRole::Agent).await;
    let mut agent = Agent::listen(&bus).await;
    send(&world, &event("e2e:p/1", "p", "hello")).await;
    let question = agent.asked().await;
    refused(&world, &bus).await;
    agent.answer(&question, "hello yourself").await;

    eventually("the answer is delivered", PATIENCE, async || {
        let record = Record::read(&world.bus).await;
        let delivered = record.delivered().len();
        if delivered == 1 {
            return Ok(());
        }
        Err(format!("{delivered} delivered\n{}", world.logs()))
    })
    .await;

    let admin = connected(&world, BusRole::Admin).await;
    operates(&admin).await;

    // Nobody takes the record away: the services neither.
    let broker = connected(&world, BusRole::Broker).await;
    let (by_admin, by_service) = (
        admin.purge_subject(streams::EVENTS, "nexus.ev.none"),
        broker.purge_subject(streams::LEDGER, "nexus.ledger.none.none"),
    );
    let (by_admin, by_service) = tokio::join!(timeout(SILENCE, by_admin), timeout(SILENCE, by_service));
    for purged in [by_admin, by_service] {
        // The client asks again and again: what is denied is never answered.
        assert!(purged.is_err(), "{purged:?}");
    }

    world.stack.stop().await;
}

/// What is asked of the approvals, of one that is not there.
fn decision() -> Value {
    json!({"id": "any", "by": {"channel": "cli", "id": "operator"}, "approve": true, "via": "cli"})
}

/// A pairing that nobody granted.
fn pairing() -> OutgoingMessage {
    OutgoingMessage::raw("$KV.pairings.telegram.main.1".to_owned(), Headers::new(), "{}".into())
}

/// Whoever looks after the installation asks the services and sees to the streams; it writes no history, and no key past the services.
async fn operates(admin: &Bus) {
    let all = ListApprovals::default();
    let listed = admin.request::<_, ApprovalList>("nexus.svc.approval.list", Headers::new(), &all, PATIENCE);
    assert!(listed.await.expect("an answer").approvals.is_empty());

    let decision = decision();
    let decided = admin.request::<_, Value>("nexus.svc.approval.decide", Headers::new(), &decision, PATIENCE);
    let decided = decided.await;

    assert!(
        matches!(decided, Err(RequestError::Service { code: 404, .. })),
        "{decided:?}"
    );

    let applied = admin
        .ensure_topology(&topology(1), true)
        .await
        .expect("the topology is looked at");
    assert!(applied.created.is_empty(), "{applied:?}");

    let gone = admin.delete_message(streams::DLQ, 1).await;
    assert!(
        matches!(gone, Ok(false) | Err(ReadStreamError::Refused { .. })),
        "{gone:?}"
    );

    let put = OutgoingMessage::raw("$KV.approvals.mine".to_owned(), Headers::new(), "{}".into());
    let paired = pairing();
    let forged = forged();
    let raw = |subject: &str| OutgoingMessage::raw(subject.to_owned(), Headers::new(), "{}".into());
    let (note, file) = (raw("$KV.fetches.mine"), raw("$O.attachments.M.mine"));
    let (post, merge) = (raw("$KV.posts.mine"), raw("$KV.merges.mine"));
    let (appended, put, paired, noted, stored, posted, merged) = tokio::join!(
        admin.publish_once(&forged, SILENCE),
        admin.publish_once(&put, SILENCE),
        admin.publish_once(&paired, SILENCE),
        admin.publish_once(&note, SILENCE),
        admin.publish_once(&file, SILENCE),
        admin.publish_once(&post, SILENCE),
        admin.publish_once(&merge, SILENCE),
    );
    for written in [appended, put, paired, noted, stored, posted, merged] {
        assert!(written.is_err(), "{written:?}");
    }
}

/// What the agent tries while its turn runs.
async fn refused(world: &World, bus: &Bus) {
    let decision = decision();
    let (all, nothing) = (ListIntents::default(), json!({}));
    let put = OutgoingMessage::raw("$KV.approvals.mine".to_owned(), Headers::new(), "{}".into());
    let event = OutgoingMessage::raw("nexus.event.e2e.default.p".to_owned(), Headers::new(), "{}".into());
    let (paired, grant) = (
        pairing(),
        json!({"channel": "telegram", "account": "main", "code": "K7Q2M9PX"}),
    );
    let forged = forged();

    // Each of them waits in vain for its answer: all at once.
    let (decided, granted, paired, listed, appended, put, event, state) = tokio::join!(
        bus.request::<_, Value>("nexus.svc.approval.decide", Headers::new(), &decision, SILENCE),
        bus.request::<_, Value>("nexus.svc.pairing.grant", Headers::new(), &grant, SILENCE),
        bus.publish_once(&paired, SILENCE),
        bus.request::<_, IntentList>("nexus.svc.intent.list", Headers::new(), &all, SILENCE),
        bus.publish_once(&forged, SILENCE),
        bus.publish_once(&put, SILENCE),
        bus.publish_once(&event, SILENCE),
        bus.request::<_, Value>("$JS.API.STREAM.INFO.EVENTS", Headers::new(), &nothing, SILENCE),
    );

    // No word of a service: the question does not reach it.
    let unheard = |error: &RequestError| matches!(error, RequestError::Timeout { .. });
    assert!(
        decided.as_ref().is_err_and(unheard),
        "an agent decides nothing: {decided:?}"
    );
    assert!(
        listed.as_ref().is_err_and(unheard),
        "nor does it look into others' intents: {listed:?}"
    );

    assert!(
        granted.as_ref().is_err_and(unheard),
        "nor does it let anybody in: {granted:?}"
    );

    for written in [appended, put, paired, event] {
        assert!(written.is_err(), "{written:?}");
    }

    assert!(
        state.as_ref().is_err_and(unheard),
        "nor does it read streams: {state:?}"
    );

    let ledger = world
        .bus
        .read_history(streams::LEDGER, "nexus.ledger.>", 1, 1_000)
        .await;
    let records = ledger.expect("the ledger").into_iter().map(|stored| stored.decode());
    let forged = |record: LedgerRecord| record.append.broker == "mallory";

    assert!(!records.flatten().any(forged), "history is the broker's");

    for (stream, key) in [
        ("KV_approvals", "$KV.approvals.mine"),
        ("KV_pairings", "$KV.pairings.telegram.main.1"),
    ] {
        let value = world.bus.last_on_subject(stream, key).await;
        assert!(value.expect("KV").is_none(), "{key}");
    }
}
