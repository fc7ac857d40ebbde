//! The bus against the real server: every promise that a service builds on.

mod partitions;
mod runs;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{
    Bus, CasError, EnsureReport, FetchMode, KvEvent, OutgoingMessage, PublishError, PullOptions, RequestError,
    ServiceSpec, StreamTap, claim, ledger, partition,
};
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{Event, EventId};
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::nats::{NatsServer, publish_by_hand};
use shared::testing::{connect_to, eventually, world};
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::partition::session_part;
use shared::wire::session_mark::GroupMember;
use shared::wire::subject;
use shared::wire::topology::{buckets, claims_consumer, streams, topology};
use tokio::sync::Notify;

const DEADLINE: Duration = Duration::from_secs(60);

fn event(n: u32, peer: &str) -> Event {
    let id = EventId::parse(format!("test:{peer}/{n}")).expect("an id");
    Event {
        content: format!("{n}"),
        ..Event::new(id, "test", peer, UnixMillis(i64::from(n)))
    }
}

async fn publish(bus: &Bus, event: &Event) -> shared::bus::PublishedMessage {
    let out = OutgoingMessage::event(event, bus.trust());
    bus.publish(out).await.expect("it is stored")
}

fn session(name: &str) -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: name.to_owned(),
    }
}

fn record(broker: &str, epoch: u64, counter: u64) -> LedgerRecord {
    LedgerRecord {
        append: AppendId {
            broker: broker.to_owned(),
            epoch,
            counter,
        },
        at: UnixMillis(1),
        held_ms: 0,
        entries: vec![LedgerEntry::Owned {
            epoch,
            broker: broker.to_owned(),
        }],
    }
}

#[tokio::test]
async fn the_topology_is_made_once_and_has_no_drift() {
    let (server, bus) = world().await;
    assert_eq!(bus.find_drift(&topology(1)).await.expect("it can be told"), Vec::new());
    let again = bus.ensure_topology(&topology(1), false).await.expect("nothing to do");
    assert!(again.created.is_empty() && again.updated.is_empty(), "{again:?}");
    let mut other = topology(1);
    other.streams[0].duplicate_window = Duration::from_secs(60);
    let error = bus.ensure_topology(&other, false).await.expect_err("it is refused");
    assert!(error.to_string().contains("stream EVENTS: duplicate_window"), "{error}");
    drop(server);
}

#[tokio::test]
async fn a_release_starts_on_the_wider_streams_of_the_next_one_and_leaves_them_so() {
    let (_server, bus) = world().await;
    let mut later = topology(1);
    for stream in &mut later.streams {
        if stream.name == streams::DLQ {
            stream.max_age *= 2;
            stream.subjects.push("nexus.dlq.*.later".to_owned());
        }
        if stream.name == streams::DISPATCHES {
            stream.max_message_bytes += 1;
        }
    }
    let refused = bus
        .ensure_topology(&later, false)
        .await
        .expect_err("not before it is applied");
    assert!(refused.to_string().contains("3 differences"), "{refused}");
    bus.ensure_topology(&later, true).await.expect("it is applied");

    let done = bus.ensure_topology(&topology(1), false).await.expect("it starts");
    assert_eq!(done, EnsureReport::default());
    let told = bus.find_drift(&topology(1)).await.expect("it can be told");
    assert!(told.len() == 3 && told.iter().all(|drift| drift.is_wider), "{told:?}");
    assert_eq!(bus.find_drift(&later).await.expect("it can be told"), Vec::new());
}

#[tokio::test]
async fn an_event_is_stored_once_under_its_partition() {
    let (_server, bus) = world().await;
    let first = publish(&bus, &event(1, "p.1")).await;
    let second = publish(&bus, &event(1, "p.1")).await;

    assert!(!first.duplicate && second.duplicate && first.sequence == second.sequence);

    let stored = bus
        .at_sequence(streams::EVENTS, first.sequence)
        .await
        .expect("readable")
        .expect("there");
    let parsed = subject::parse_event(&stored.subject).expect("a stored subject");
    assert_eq!((parsed.channel, parsed.peer), ("test", "p=2E1"));
    assert_eq!(stored.decode::<Event>().expect("it decodes"), event(1, "p.1"));

    assert_eq!(
        bus.read_history(streams::EVENTS, &stored.subject, 1, 10)
            .await
            .expect("readable"),
        vec![stored]
    );
}

#[tokio::test]
async fn what_the_server_refuses_for_good_is_an_error_and_no_loop() {
    let (_server, bus) = world().await;
    let big = Event {
        content: "x".repeat(5 << 20),
        ..event(1, "p")
    };

    let error = bus
        .publish(OutgoingMessage::new(subject::event(&big), &big))
        .await
        .expect_err("too large");
    assert!(matches!(error, PublishError::TooLarge { .. }), "{error}");

    let once = OutgoingMessage::new("nexus.nowhere".to_owned(), &event(1, "p"));
    let error = bus.publish_once(&once, DEADLINE).await.expect_err("nobody listens");
    assert!(matches!(error, PublishError::NoStream { .. }), "{error}");
}

#[tokio::test]
async fn a_session_has_one_claim_until_it_is_released() {
    let (_server, bus) = world().await;
    let claims = async || {
        claim::publish(&bus, &session("main"), &TraceCarrier::default())
            .await
            .expect("answered")
    };

    assert_eq!(claims().await, claim::ClaimedKey::New);
    assert_eq!(claims().await, claim::ClaimedKey::AlreadyHeld);

    let mut pull = claim::pull(&bus, session_part(&session("main")), 10);
    let taken = tokio::time::timeout(DEADLINE, pull.next())
        .await
        .expect("a claim comes");

    assert_eq!(claims().await, claim::ClaimedKey::AlreadyHeld, "while it is held");
    assert!(claim::release(&bus, taken.sequence).await.expect("answered"));
    assert!(
        !claim::release(&bus, taken.sequence).await.expect("answered"),
        "gone already"
    );
    assert_eq!(claims().await, claim::ClaimedKey::New);
}

/// A server that goes away while a process starts must not end the process.
#[tokio::test]
async fn a_consumer_that_is_not_there_yet_is_waited_for() {
    let server = NatsServer::start().await;
    let bus = connect_to(&server.url(), "test").await;
    let part = session_part(&session("main"));
    let (mut pull, mut fetcher) = (claim::pull(&bus, part, 1), claim::fetcher(&bus, part));
    let refused = tokio::select! {
        biased;
        taken = pull.next() => panic!("nothing is there: {taken:?}"),
        refused = fetcher.request_messages(1, FetchMode::Wait) => refused,
    };

    assert!(refused.is_err(), "{refused:?}");

    bus.ensure_topology(&topology(1), false)
        .await
        .expect("the topology is made");
    claim::publish(&bus, &session("main"), &TraceCarrier::default())
        .await
        .expect("claimed");
    let taken = tokio::time::timeout(DEADLINE, pull.next()).await;

    assert_eq!(taken.expect("a claim comes").sequence, 1);

    fetcher
        .request_messages(1, FetchMode::Wait)
        .await
        .expect("it can be asked now");
    let delete = format!("$JS.API.CONSUMER.DELETE.{}.{}", streams::CLAIMS, claims_consumer(part));
    let deleted = bus
        .request_bytes(&delete, &Headers::new(), bytes::Bytes::new(), DEADLINE)
        .await;
    deleted.expect("somebody deletes it");
    let found_out = async {
        while fetcher.request_messages(1, FetchMode::Wait).await.is_ok() {
            assert!(fetcher.next().await.is_none(), "nothing comes of one that is gone");
        }
    };

    let found_out = tokio::time::timeout(DEADLINE, found_out).await;
    found_out.expect("it is noticed that it is gone");
}

#[tokio::test]
async fn the_ledger_fence_lets_one_of_two_owners_write() {
    let (_server, bus) = world().await;
    let at = session("main");
    let none = TraceCarrier::default();
    let first = ledger::append(&bus, &at, &record("a", 1, 0), 0, &none)
        .await
        .expect("the first entry");
    let second = ledger::append(&bus, &at, &record("b", 2, 0), first, &none)
        .await
        .expect("b takes over");

    let late = ledger::append(&bus, &at, &record("a", 1, 1), first, &none)
        .await
        .expect_err("a is stale");
    assert!(matches!(late, ledger::AppendLedgerError::FenceLost { .. }), "{late}");

    let twin = ledger::append(&bus, &at, &record("b", 2, 0), first, &none)
        .await
        .expect_err("the same bytes of another attempt");
    assert!(matches!(twin, ledger::AppendLedgerError::FenceLost { .. }), "{twin}");

    let read = ledger::read_after(&bus, &at, 0).await.expect("readable");
    let sequences: Vec<u64> = read.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!(sequences, vec![first, second]);
}

#[tokio::test]
async fn a_key_has_one_winner_also_after_it_expired() {
    let (_server, bus) = world().await;
    let kv = bus.kv::<GroupMember>(buckets::MEMBERS);
    let member = |name: &str| GroupMember {
        instance: name.to_owned(),
        run: String::new(),
    };
    let mut watch = kv.watch_all();

    assert_eq!(watch.next().await, KvEvent::Current);

    let revision = kv
        .create_ttl("k", &member("a"), Duration::from_secs(5))
        .await
        .expect("free");
    let lost = kv.create("k", &member("b")).await.expect_err("taken");
    assert!(matches!(lost, CasError::Conflict { .. }), "{lost}");
    assert!(matches!(watch.next().await, KvEvent::Put { key, .. } if key == "k"));

    let gone = tokio::time::timeout(DEADLINE, watch.next()).await.expect("it expires");
    assert!(matches!(&gone, KvEvent::Gone { key, .. } if key == "k"), "{gone:?}");
    assert_eq!(kv.get("k").await.expect("readable"), None);

    let stale = kv
        .update("k", &member("a"), revision)
        .await
        .expect_err("another revision by now");
    assert!(matches!(stale, CasError::Conflict { .. }), "{stale}");

    let won = kv.create("k", &member("b")).await.expect("free again");
    kv.delete("k", Some(won)).await.expect("ours");
    assert!(kv.entries().await.expect("readable").is_empty());
}

#[tokio::test]
async fn a_publish_outlives_a_killed_server_and_readers_go_on() {
    let (mut server, bus) = world().await;
    let mut ordered = bus
        .read_ordered(streams::EVENTS, &[], 1)
        .await
        .expect("the stream is there");
    publish(&bus, &event(1, "p")).await;

    assert_eq!(ordered.next().await.decode::<Event>().expect("decodes").content, "1");

    server.kill9();
    let waiting = tokio::spawn({
        let bus = bus.clone();
        async move { publish(&bus, &event(2, "p")).await }
    });

    server.restart().await;
    // Stored, be it by the second try of a publish whose first answer died with the server.
    waiting.await.expect("no panic");
    let next = tokio::time::timeout(DEADLINE, ordered.next())
        .await
        .expect("it goes on");

    assert_eq!(next.decode::<Event>().expect("decodes").content, "2");
}

#[tokio::test]
async fn a_message_is_pulled_again_until_it_is_acked() {
    let (_server, bus) = world().await;
    claim::publish(&bus, &session("s"), &TraceCarrier::default())
        .await
        .expect("claimed");
    let consumer = claims_consumer(session_part(&session("s")));
    let mut pull = bus.pull(streams::CLAIMS, &consumer, PullOptions::default());
    let first = pull.next().await;

    assert_eq!(first.delivered, 1);

    first.nak(None).await;
    let again = tokio::time::timeout(DEADLINE, pull.next())
        .await
        .expect("it comes again");

    assert_eq!(again.delivered, 2);

    again.ack().await;
}

/// A service answers with its own rights: whoever may ask it must not have it write where they may not.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_answers_inboxes_alone() {
    let (server, bus) = world().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&asked);
    let spec = ServiceSpec::new("probe", "for tests").endpoint("ask", move |question: Value| {
        hears.lock().expect("whole").push(question.clone());
        async move { Ok::<_, (usize, String)>(question) }
    });

    let _serving = bus.serve(spec).await.expect("served");

    for reply in [
        "nexus.ledger.default.main",
        "$KV.approvals.mine",
        "$JS.API.STREAM.PURGE.EVENTS",
    ] {
        let subject = format!("nexus.svc.probe.ask {reply}");
        publish_by_hand(&server.url(), &subject, b"NATS/1.0\r\n\r\n", b"\"mine\"").await;
    }

    let answer: Value = bus
        .request("nexus.svc.probe.ask", Headers::new(), &json!("theirs"), DEADLINE)
        .await
        .expect("an answer");
    assert_eq!(
        (answer, asked.lock().expect("whole").clone()),
        (json!("theirs"), vec![json!("theirs")])
    );

    let ledger = bus.read_history(streams::LEDGER, "nexus.ledger.>", 1, 10).await;
    assert_eq!(ledger.expect("the ledger").len(), 0);

    let value = bus.last_on_subject("KV_approvals", "$KV.approvals.mine").await;
    assert!(value.expect("KV").is_none());
}

/// A replica that was stopped still gets its share of the requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_asked_again_while_a_replica_is_silent() {
    let (_server, bus) = world().await;
    let asked = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&asked);
    let spec = ServiceSpec::new("probe", "for tests").endpoint("ask", move |question: Value| {
        let is_first = {
            let mut asked = counts.lock().expect("whole");
            *asked += 1;
            *asked == 1
        };
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            Ok::<_, (usize, String)>(question)
        }
    });
    let _serving = bus.serve(spec).await.expect("served");

    let question = json!("still there?");
    let answer: Value = bus
        .ask("nexus.svc.probe.ask", &question, DEADLINE)
        .await
        .expect("an answer");
    assert_eq!(answer, question);
    assert!(*asked.lock().expect("whole") > 1, "the first one was not answered");

    // An error is an answer too.
    let absent = bus
        .ask::<_, Value>("nexus.svc.probe.nothing", &question, DEADLINE)
        .await;
    assert!(matches!(absent, Err(RequestError::NoResponder { .. })), "{absent:?}");
}

/// One that is ending refuses while another one, which was asked before, still works.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_is_no_answer_while_another_replica_works() {
    let (_server, bus) = world().await;
    let asked = Arc::new(Mutex::new(0));
    let third = Arc::new(Notify::new());
    let spec = ServiceSpec::new("probe", "for tests").endpoint("ask", move |question: Value| {
        let number = {
            let mut asked = asked.lock().expect("whole");
            *asked += 1;
            *asked
        };
        let third = Arc::clone(&third);
        async move {
            match number {
                // It answers once the second one has refused.
                1 => third.notified().await,
                2 => return Err((503, "ending".to_owned())),
                _ => {
                    third.notify_one();
                    std::future::pending::<()>().await;
                }
            }
            Ok::<_, (usize, String)>(question)
        }
    });
    let _serving = bus.serve(spec).await.expect("served");

    let question = json!("who answers?");
    let answer = bus.ask::<_, Value>("nexus.svc.probe.ask", &question, DEADLINE).await;
    assert_eq!(answer.expect("an answer"), question);
}
