//! The feed, from a real server.

use std::time::Duration;

use bytes::Bytes;

use super::Case;
use super::samples::{self, chain, event};
use crate::bus::{Bus, NatsConfig, OutgoingMessage};
use crate::clock::{Clock, SystemClock};
use crate::model::approval::SessionDecision;
use crate::model::order::{OrderKind, SessionOrder};
use crate::process::ShutdownSignal;
use crate::projection::api::TraceRequest;
use crate::projection::{AppliedRecord, FeedSource, feed};
use crate::testing::nats::NatsServer;
use crate::wire::headers::Headers;
use crate::wire::headers::MSG_ID;
use crate::wire::{subject, topology};

/// Deadline of everything that a test waits for.
const DEADLINE: Duration = Duration::from_secs(60);

async fn bus(server: &NatsServer) -> Bus {
    let config = NatsConfig {
        servers: vec![server.url()],
        ..NatsConfig::default()
    };
    let bus = crate::testing::connect(&config, "projection-test").await;
    bus.ensure_topology(&topology::topology(1), true).await.unwrap();
    bus
}

async fn publish(bus: &Bus, applied: &AppliedRecord) {
    let out = match applied {
        AppliedRecord::Event { event, .. } => {
            let mut out = OutgoingMessage::event(event, bus.trust());
            out.headers.remove(MSG_ID);
            out
        }
        AppliedRecord::Invocations { record, .. } => {
            OutgoingMessage::new(subject::invocation(0, &record.event_id), &**record)
        }
        AppliedRecord::Dispatch { dispatch, .. } => {
            OutgoingMessage::new(subject::dispatch(&dispatch.target), &**dispatch)
        }
        AppliedRecord::Ledger { record, .. } => OutgoingMessage::new(subject::ledger(&samples::session()), &**record),
        AppliedRecord::Receipt { receipt, .. } => OutgoingMessage::new(subject::receipt(&receipt.target), &**receipt),
        AppliedRecord::Beside { .. } | AppliedRecord::Unreadable { .. } | AppliedRecord::Mark { .. } => return,
    };

    bus.publish(out).await.unwrap();
}

async fn reached(case: &Case, source: FeedSource, sequence: u64) {
    tokio::time::timeout(DEADLINE, case.projection.wait_reached(source, sequence))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follows_the_streams_past_rubbish_and_over_a_restart() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let case = Case::new();
    let shutdown = ShutdownSignal::default();
    let running = tokio::spawn(feed::run(bus.clone(), case.projection.clone(), shutdown.clone()));

    for applied in chain(1) {
        publish(&bus, &applied).await;
    }

    bus.core_publish(
        "nexus.event.webhook.default.x",
        &Headers::new(),
        Bytes::from_static(b"\xff\x00 rubbish"),
    )
    .await;

    bus.flush().await.unwrap();
    publish(&bus, &samples::stored(0, event(2))).await;
    reached(&case, FeedSource::Events, 4).await;

    for source in [FeedSource::Dispatches, FeedSource::Ledger, FeedSource::Receipts] {
        reached(&case, source, 1).await;
    }

    reached(&case, FeedSource::Invocations, 2).await;
    let trace = case
        .projection
        .trace(
            TraceRequest {
                event_id: samples::event_id(1),
            },
            crate::projection::given_up::GivenUp::default(),
        )
        .await
        .unwrap();

    assert!(trace.complete, "{trace:#?}");
    assert_eq!(case.value::<i64>("SELECT count(*) FROM events"), 3);
    assert_eq!(case.value::<String>("SELECT id FROM agent_sessions"), "default/main");
    assert_eq!(case.projection.lag(SystemClock.now()), Some(Duration::ZERO));

    shutdown.trigger();
    running.await.unwrap().unwrap();
    publish(&bus, &samples::stored(0, event(3))).await;
    let shutdown = ShutdownSignal::default();
    let running = tokio::spawn(feed::run(bus.clone(), case.projection.clone(), shutdown.clone()));
    reached(&case, FeedSource::Events, 5).await;

    assert_eq!(case.value::<i64>("SELECT count(*) FROM events"), 4);

    shutdown.trigger();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_servers_streams_replace_what_was_there() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let case = Case::with((1..=20).flat_map(chain).collect()).await;
    assert!(
        !case.projection.is_compared(),
        "a file alone does not know of which streams it is"
    );

    let shutdown = ShutdownSignal::default();
    let running = tokio::spawn(feed::run(bus.clone(), case.projection.clone(), shutdown.clone()));
    publish(&bus, &samples::stored(0, event(77))).await;
    let looked = tokio::time::timeout(DEADLINE, async {
        while case.projection.position(FeedSource::Events) != 1 {
            tokio::task::yield_now().await;
        }
    });

    looked.await.unwrap();
    assert_eq!(
        case.value::<String>("SELECT id FROM events"),
        samples::event_id(77).to_string()
    );
    assert!(case.projection.is_compared());

    shutdown.trigger();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_decisions_among_the_dispatches_are_nothing_unreadable() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let subject = subject::dispatch(&samples::session());

    let order = SessionOrder {
        id: samples::turn(1),
        target: samples::session(),
        wanted: OrderKind::Reset,
        by: "ann".to_owned(),
        reason: String::new(),
        at: samples::at(1),
    };

    let decision = SessionDecision {
        target: samples::session(),
        approval: "a1".to_owned(),
        at: samples::at(2),
    };
    bus.publish(OutgoingMessage::new(subject.clone(), &order))
        .await
        .unwrap();
    bus.publish(OutgoingMessage::new(subject, &decision)).await.unwrap();

    let mut stored = bus.read_ordered("DISPATCHES", &[], 1).await.unwrap();
    for sequence in 1..=2 {
        let message = stored.next().await;
        let source = FeedSource::Dispatches;
        let beside = AppliedRecord::Beside { source, sequence };
        assert_eq!(feed::decode(source, &message, bus.trust()), beside);
    }
}
