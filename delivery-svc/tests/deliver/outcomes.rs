//! What follows from each outcome of a call, in receipts and sent events.

use delivery_svc::attempt::{CallOutcome, Repetition, RequestSent};
use shared::model::receipt::{AttemptOutcome, ReceiptStep};
use shared::model::reply::Reply;
use shared::testing::eventually;

use crate::scripted::{SCRIPTED, Script};
use crate::world::{Setup, World, reply};

/// A reply whose text has markup.
fn marked() -> Reply {
    let mut reply = reply(1, SCRIPTED, "ann");
    reply.content = "**1 < 2**".to_owned();
    reply
}

fn unformattable() -> CallOutcome {
    CallOutcome::Unformattable {
        reason: "can't parse entities".to_owned(),
    }
}

fn unreachable(sent: RequestSent) -> CallOutcome {
    let reason = "reset".to_owned();
    CallOutcome::Unreachable { sent, reason }
}

/// What is left of [`marked`], delivered by a replica whose platform follows `script`.
struct Left {
    calls: Vec<String>,
    letters: Vec<String>,
    steps: Vec<ReceiptStep>,
    /// Whether each sent event is marked as unconfirmed.
    events: Vec<bool>,
}

async fn left(world: &World, script: &Script, reply: &Reply) -> Left {
    world.settled().await;
    let events = world.sent_events().await;
    let letters = world.dead_letters().await;
    Left {
        calls: script.calls(),
        letters: letters.into_iter().map(|letter| letter.detail).collect(),
        steps: world.outcomes(&reply.delivery_context).await,
        events: events
            .iter()
            .map(|event| event.metadata.contains_key("unconfirmed"))
            .collect(),
    }
}

async fn deliver(script: Script) -> Left {
    let (world, reply) = (World::start().await, marked());
    let setup = Setup {
        script: script.clone(),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    world.publish(&reply).await;
    let left = left(&world, &script, &reply).await;
    replica.stop().await;
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_the_platform_cannot_read_is_sent_plain_once() {
    let once = Script::new(Repetition::AtLeastOnce, [Some(unformattable())]);
    let told = deliver(once).await;
    assert_eq!(told.calls, ["<b>1 &lt; 2</b>", "1 < 2"]);
    assert_eq!((told.letters.len(), told.events), (0, vec![false]));
    assert!(
        matches!(told.steps[..], [ReceiptStep::Delivered { attempts: 1, .. }]),
        "{:?}",
        told.steps
    );

    let twice = Script::new(Repetition::AtLeastOnce, [Some(unformattable()), Some(unformattable())]);
    let told = deliver(twice).await;
    assert_eq!(told.calls.len(), 2);
    assert_eq!(told.letters, ["can't parse entities"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_repeated_and_marked_only_if_the_platform_may_show_the_part_twice() {
    for (repetition, sent, is_marked) in [
        (Repetition::Recognised, RequestSent::Maybe, false),
        (Repetition::AtLeastOnce, RequestSent::No, false),
        (Repetition::AtMostOnce, RequestSent::No, false),
        (Repetition::AtLeastOnce, RequestSent::Maybe, true),
    ] {
        let told = deliver(Script::new(repetition, [Some(unreachable(sent))])).await;
        assert_eq!(told.calls.len(), 2, "{repetition:?} {sent:?}");
        assert_eq!(told.events, [is_marked], "{repetition:?} {sent:?}");

        let expected: &[u32] = if is_marked { &[0] } else { &[] };
        let last = told.steps.last();
        assert!(
            matches!(last, Some(ReceiptStep::Delivered { unconfirmed, .. }) if unconfirmed == expected),
            "{repetition:?} {sent:?}: {last:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_ends_a_delivery_that_is_made_at_most_once() {
    let told = deliver(Script::new(
        Repetition::AtMostOnce,
        [Some(unreachable(RequestSent::Maybe))],
    ))
    .await;
    assert_eq!((told.calls.len(), told.events.len()), (1, 0));
    assert!(told.letters[0].contains("may have been sent"), "{:?}", told.letters);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_during_a_call_leaves_a_doubt() {
    for (repetition, calls, events) in [
        (Repetition::Recognised, 2, vec![false]),
        (Repetition::AtLeastOnce, 2, vec![true]),
        (Repetition::AtMostOnce, 1, vec![]),
    ] {
        let (world, reply) = (World::start().await, marked());
        let script = Script::new(repetition, [None]);
        let setup = || Setup {
            script: script.clone(),
            ..Setup::default()
        };

        let first = world.replica("a", setup());
        world.publish(&reply).await;
        eventually("the call is under way", async || script.calls().len() == 1).await;
        first.kill();

        let second = world.replica("a", setup());
        let told = left(&world, &script, &reply).await;
        assert_eq!(told.calls.len(), calls, "{repetition:?}");
        assert_eq!(told.events, events, "{repetition:?}");
        assert_eq!(told.letters.len(), usize::from(events.is_empty()), "{repetition:?}");
        second.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_ends_no_delivery() {
    let refused = CallOutcome::Reauth {
        reason: "Unauthorized".to_owned(),
    };
    let (world, reply) = (World::start().await, marked());
    let setup = Setup {
        script: Script::new(Repetition::AtLeastOnce, [Some(refused)]),
        ..Setup::default()
    };
    let replica = world.replica("a", setup);
    world.publish(&reply).await;

    eventually("the refusal is recorded", async || {
        !world.outcomes(&reply.delivery_context).await.is_empty()
    })
    .await;
    let steps = world.outcomes(&reply.delivery_context).await;
    let is_wait = |outcome: &AttemptOutcome| matches!(outcome, AttemptOutcome::Limited { reason, .. } if reason.contains("Unauthorized"));
    assert!(
        matches!(&steps[..], [ReceiptStep::AttemptFinished { outcome, .. }] if is_wait(outcome)),
        "{steps:?}"
    );
    assert!(world.dead_letters().await.is_empty());

    replica.kill();
}
