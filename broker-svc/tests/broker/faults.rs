//! Bad input, quarantine, and a crash between append and reply.

use std::time::Duration;

use broker_svc::agent::personas::PersonaLimits;
use broker_svc::agent::port::AgentAnswer;
use broker_svc::config::BrokerConfig;
use broker_svc::ledger::state::{SessionState, advance_cursor};
use broker_svc::queue::quarantine::{MAX_DELIVERIES, MAX_TRIES};
use broker_svc::session::PendingDispatch;
use broker_svc::turn::Turn;
use bytes::Bytes;
use shared::bus::{OutgoingMessage, claim, ledger};
use shared::model::ledger::{AppendId, DropReason, LedgerEntry, LedgerRecord};
use shared::model::position::StreamPlace;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::wire::headers::{Headers, SCHEMA, TraceCarrier};
use shared::wire::partition::session_part;
use shared::wire::session_mark::{ClaimTries, SessionMark};
use shared::wire::subject::{self, session_key};
use shared::wire::topology::streams::{CLAIMS, LEDGER};
use shared::wire::topology::{SESSION_PARTS, buckets, claims_consumer};

use crate::bench::{Bench, dispatch, session};

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_dispatch_is_dropped_with_a_dead_letter_and_the_session_goes_on() {
    let bench = Bench::start().await;
    let running = bench.run("b1", "").await;
    let main = session("main");
    let garbage = Bytes::from_static(&[0xff, 0x00, 0x13]);
    let raw = |headers: Headers| OutgoingMessage::raw(subject::dispatch(&main), headers, garbage.clone());
    bench.bus.publish(raw(Headers::new())).await.expect("garbage is stored");
    let newer: Headers = [(SCHEMA, "dispatch/999")].into_iter().collect();
    bench.bus.publish(raw(newer)).await.expect("a newer one is stored");

    let stray = OutgoingMessage::new(subject::dispatch(&main), &dispatch(&session("other"), 1));
    bench.bus.publish(stray).await.expect("a stray one is stored");
    bench.send(&main, 2).await;
    eventually("the good one", async || bench.completed(&main).await == ["test:main/2"]).await;
    let letters = bench.dead_letters().await;
    let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();

    assert_eq!(reasons, ["malformed", "newer_schema", "wrong_session"]);
    assert_eq!(letters[0].payload_bytes().as_deref(), Some(&garbage[..]));

    let entries = bench.entries(&main).await;
    let dropped = entries
        .iter()
        .filter(|entry| matches!(entry, LedgerEntry::DispatchDropped { .. }))
        .count();

    assert_eq!(dropped, 3);

    eventually("no claim", async || bench.claims().await == 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cursor_passes_no_bad_dispatch_whose_letter_is_not_written() {
    let bench = Bench::start().await;
    let main = session("main");

    let mut sequences = Vec::new();
    for _ in 0..3 {
        let garbage = OutgoingMessage::raw(subject::dispatch(&main), Headers::new(), Bytes::from_static(&[0xff]));
        sequences.push(bench.bus.publish(garbage).await.expect("garbage is stored").sequence);
    }

    let running = bench.run("b1", "").await;
    bench.send(&main, 2).await;
    eventually("the good one", async || bench.completed(&main).await.len() == 1).await;

    let mut dropped = Vec::new();
    for entry in bench.entries(&main).await {
        if let LedgerEntry::DispatchDropped { dispatch, cursor, .. } = entry {
            let open = sequences.iter().filter(|&&sequence| !cursor.contains(sequence)).count();
            dropped.push((dispatch.sequence, open));
        }
    }

    let expected: Vec<(u64, usize)> = sequences.iter().copied().zip([2, 1, 0]).collect();
    assert_eq!(dropped, expected);

    running.stop().await;
}

/// Claims `to` and lets the claim be delivered so often that its next tries are counted; answers its place.
async fn delivered_often(bench: &Bench, to: &SessionRef) -> StreamPlace {
    bench.send(to, 1).await;
    let mut pull = claim::pull(&bench.bus, session_part(to), 1);
    for _ in 0..MAX_DELIVERIES {
        pull.next().await.nak(None).await;
    }
    let last = pull.next().await;
    assert!(last.delivered > MAX_DELIVERIES, "{}", last.delivered);
    last.nak(Some(Duration::from_millis(200))).await;
    last.place()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_claim_came_often_and_that_nobody_tried_is_run() {
    let bench = Bench::start().await;
    let main = session("main");
    delivered_often(&bench, &main).await;
    let running = bench.run("b1", "").await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    eventually("no claim", async || bench.claims().await == 0).await;

    assert_eq!(bench.dead_letters().await, []);

    let marks = bench.bus.kv::<SessionMark>(buckets::SESSION_OVERRIDES);
    eventually("no mark", async || {
        marks.get(&session_key(&main)).await.expect("a bucket").is_none()
    })
    .await;

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_goes_nowhere_is_quarantined_and_can_be_released() {
    let bench = Bench::start().await;
    let (main, key) = (session("main"), session_key(&session("main")));
    let garbage = OutgoingMessage::raw(subject::ledger(&main), Headers::new(), Bytes::from_static(&[0xff]));
    let garbage = bench.bus.publish(garbage).await.expect("garbage is stored").sequence;
    let marks = bench.bus.kv::<SessionMark>(buckets::SESSION_OVERRIDES);

    let tried = SessionMark {
        session: main.clone(),
        quarantined: None,
        tries: Some(ClaimTries {
            claim: delivered_often(&bench, &main).await,
            begun: MAX_TRIES - 1,
        }),
        since: UnixMillis(1),
    };

    marks.create(&key, &tried).await.expect("a mark");
    let running = bench.run("b1", "").await;
    eventually("the last try is counted", async || {
        let mark = marks.get(&key).await.expect("a bucket").expect("a mark").value;
        mark.quarantined.is_some() || mark.tries.is_some_and(|tries| tries.begun == MAX_TRIES)
    })
    .await;

    eventually("a dead letter", async || bench.dead_letters().await.len() == 1).await;
    eventually("no claim", async || bench.claims().await == 0).await;
    let mark = marks.get(&key).await.expect("a bucket").expect("a mark");

    assert!(mark.value.quarantined.is_some() && mark.value.session == main);

    bench.bus.delete_message(LEDGER, garbage).await.expect("mended");
    assert_eq!(bench.ledger(&main).await, []);

    // A claim for a parked session is ended at once; once the mark is gone the session runs.
    bench.claim(&main).await;
    eventually("that claim is ended", async || bench.claims().await == 0).await;
    marks.delete(&key, None).await.expect("released");
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tries_of_a_claim_that_is_gone_are_not_those_of_the_one_that_has_its_sequence_now() {
    let mut bench = Bench::start().await;
    let (main, key) = (session("main"), session_key(&session("main")));
    bench.server.stop().await;
    let older = bench.server.copy_of(CLAIMS);
    bench.server.restart().await;
    let gone = delivered_often(&bench, &main).await;
    let marks = bench.bus.kv::<SessionMark>(buckets::SESSION_OVERRIDES);

    let tried = SessionMark {
        session: main.clone(),
        quarantined: None,
        tries: Some(ClaimTries {
            claim: gone,
            begun: MAX_TRIES,
        }),
        since: UnixMillis(1),
    };

    marks.create(&key, &tried).await.expect("a mark");

    bench.server.stop().await;
    bench.server.put_back(CLAIMS, &older);
    bench.server.restart().await;
    let new = delivered_often(&bench, &main).await;

    assert_eq!(new.sequence, gone.sequence, "it was given out again");

    let running = bench.run("b1", "").await;
    eventually("both turns", async || bench.completed(&main).await.len() == 2).await;
    assert_eq!(bench.dead_letters().await, []);

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_takes_no_more_claims_than_it_has_slots() {
    const SLOTS: usize = 8;
    const SESSIONS: usize = 20;

    let bench = Bench::start().await;
    let config = BrokerConfig {
        max_active_turns: SLOTS,
        ..BrokerConfig::default()
    };

    let patient = "personas: {default: {runner: nats, limits: {no_agent_ms: 60000}}}";
    let _running = bench.run_with("b1", patient, config).await;

    let mut most = 0;
    for number in 0..SESSIONS {
        bench.send(&session(&format!("s{number}")), 1).await;
        most = most.max(in_hand(&bench).await);
    }

    // Some more looks once all slots are at work: what the broker took beyond them would lie there.
    let mut looks = 0;
    eventually("all slots are at work", async || {
        most = most.max(in_hand(&bench).await);
        let begun = bench.bus.stream_state(LEDGER).await.expect("a ledger").messages;
        looks += usize::from(begun >= SLOTS as u64);
        looks > 20
    })
    .await;

    assert_eq!(most, SLOTS as u64);

    // What it did not take is there for anybody else.
    let mut left = 0;
    for part in 0..SESSION_PARTS {
        left += bench
            .bus
            .consumer_lag(CLAIMS, &claims_consumer(part))
            .await
            .expect("known")
            .waiting;
    }
    assert_eq!(left, (SESSIONS - SLOTS) as u64);
}

/// Claims that brokers have taken and not ended.
async fn in_hand(bench: &Bench) -> u64 {
    let mut sum = 0;
    for part in 0..SESSION_PARTS {
        let lag = bench.bus.consumer_lag(CLAIMS, &claims_consumer(part)).await;
        sum += lag.expect("the consumer is known").in_hand;
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_its_owner_did_not_live_to_publish_is_published_once() {
    let bench = Bench::start().await;
    let main = session("main");
    let one = dispatch(&main, 1);
    let sequence = bench.publish(&one).await;

    let pending = PendingDispatch {
        arrived: UnixMillis(0),
        sequence,
        dispatch: one.into(),
        carrier: TraceCarrier::default(),
        is_repeated: false,
        is_redriven: false,
    };

    let turn = Turn::for_pendings(
        &main,
        &SessionState::default(),
        &[pending],
        &PersonaLimits::default(),
        &shared::model::permission::PermissionPresets::default(),
    );

    let cursor = advance_cursor(&SessionState::default().cursor, sequence, sequence, None);
    let mut entries = vec![
        LedgerEntry::SessionOpened { session: main.clone() },
        LedgerEntry::Owned {
            epoch: 1,
            broker: "dead".to_owned(),
        },
        turn.started_entry(),
    ];

    entries.extend(turn.completed_entries(
        AgentAnswer {
            content: "last words".to_owned(),
            ..AgentAnswer::default()
        },
        cursor,
    ));

    let append = AppendId {
        broker: "dead".to_owned(),
        epoch: 1,
        counter: 1,
    };
    let record = LedgerRecord {
        append,
        at: UnixMillis(1),
        held_ms: 0,
        entries,
    };

    ledger::append(&bench.bus, &main, &record, 0, &TraceCarrier::default())
        .await
        .expect("appended");
    bench.claim(&main).await;
    let running = bench.run("b1", "").await;
    eventually("its reply", async || bench.replies().await.len() == 1).await;
    running.stop().await;

    // The next owner finds it not noted, publishes it again, and the server knows its id.
    bench.send(&main, 2).await;
    let second = bench.run("b2", "").await;
    eventually("two replies", async || {
        bench.replies().await.len() >= 2 && bench.claims().await == 0
    })
    .await;

    let said: Vec<String> = bench.replies().await.into_iter().map(|reply| reply.content).collect();
    assert_eq!(said, ["last words", "echo: message 2"]);

    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_published_again_outside_of_the_servers_window_is_not_run_again() {
    let bench = Bench::start().await;
    let running = bench.run("b1", "").await;
    let main = session("main");
    let one = bench.send(&main, 1).await;
    eventually("the turn", async || {
        bench.completed(&main).await.len() == 1 && bench.claims().await == 0
    })
    .await;

    // Without its message id the server cannot know it.
    let again = OutgoingMessage::new(subject::dispatch(&main), &one);
    bench.bus.publish(again).await.expect("stored");
    bench.send(&main, 2).await;
    eventually("the second turn", async || bench.completed(&main).await.len() == 2).await;
    eventually("no claim", async || bench.claims().await == 0).await;
    let entries = bench.entries(&main).await;
    let dropped = entries
        .iter()
        .any(|e| matches!(e, LedgerEntry::DispatchDropped { reason, .. } if *reason == DropReason::Duplicate));

    assert!(dropped && bench.replies().await.len() == 2);

    running.stop().await;
}
