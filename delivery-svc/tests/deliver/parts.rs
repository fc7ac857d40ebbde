//! Replies of several parts: their attempts, and the platform's ids of each.

use serde_json::json;
use shared::model::receipt::{AttemptOutcome, ReceiptStep};
use shared::testing::eventually;

use crate::receiver::Receiver;
use crate::world::{Setup, World, numbered_ids, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_forgets_the_ids_of_no_part() {
    let world = World::start().await;
    let mut reply = reply(1, "numbered", "ann");
    reply.content = "aaaaaaaaa bbbbbbbbb ccccccccc".to_owned();
    let stuck = Setup {
        taken: Some(1),
        ..Setup::default()
    };

    let first = world.replica("a", stuck);
    world.publish(&reply).await;
    eventually("the second part is under way", async || {
        let receipts = world.receipts(&reply.delivery_context).await;
        let is_second = |step: &ReceiptStep| matches!(step, ReceiptStep::AttemptStarted { part: 1, .. });
        receipts.iter().any(|receipt| is_second(&receipt.step))
    })
    .await;
    first.kill();

    let second = world.replica("a", Setup::default());
    world.settled().await;

    let steps = world.outcomes(&reply.delivery_context).await;
    let all: Vec<_> = (0..3).map(numbered_ids).collect();
    assert!(
        matches!(steps.last(), Some(ReceiptStep::Delivered { parts: 3, platform_ids, .. }) if *platform_ids == all),
        "{steps:?}"
    );

    let mut named: Vec<_> = world.sent_events().await;
    named.sort_by(|a, b| a.id.cmp(&b.id));
    let named: Vec<_> = named.iter().map(|event| event.metadata["platform"].clone()).collect();
    let expected: Vec<_> = (0..3)
        .map(|part| json!({"ids": numbered_ids(part), "part": part}))
        .collect();
    assert_eq!(named, expected);

    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_the_platform_limits_cost_no_attempt() {
    // More calls than the schedule has attempts.
    let limited = (429, Some("1"));
    let (world, receiver) = (
        World::start().await,
        Receiver::start(&[limited, limited, limited, (500, None)]).await,
    );
    let setup = Setup {
        url: receiver.url(),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    let reply = reply(1, "webhook", "ann");
    world.publish(&reply).await;
    world.settled().await;

    let calls = receiver.calls();
    assert!(
        (1..4).all(|call| calls[call].at.since(calls[call - 1].at) >= 1_000),
        "none earlier than allowed: {calls:?}"
    );

    let steps = world.outcomes(&reply.delivery_context).await;
    assert_eq!(steps.len(), 5, "{steps:?}");
    assert!(
        matches!(
            &steps[3],
            ReceiptStep::AttemptFinished {
                attempt: 4,
                uncounted: 3,
                outcome: AttemptOutcome::Retry { .. },
                ..
            }
        ),
        "{steps:?}"
    );
    assert!(
        matches!(steps[4], ReceiptStep::Delivered { attempts: 5, .. }),
        "{steps:?}"
    );

    replica.stop().await;
}
