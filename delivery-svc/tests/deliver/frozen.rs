//! A delivery of several parts keeps its plan, whatever the renderer and its settings are after a crash.

use std::sync::Arc;

use delivery_svc::attempt::{CallOutcome, Repetition};
use delivery_svc::chunk::{ChunkLimit, LengthUnit};
use delivery_svc::destination::Destination;
use delivery_svc::frozen_plan::{plan_hash, planned_parts};
use delivery_svc::job::{DELIVERY_COPY, DeliveryJob, StreamPlace};
use delivery_svc::plan::{MessagePart, PartLayout, TextFormat, plan_parts};
use delivery_svc::receipts::{PartitionReceipts, ReceiptWrite, receipts_witness};
use delivery_svc::resume::{DeliveryStanding, RemainingWork, StandingPlan};
use serde_json::json;
use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::model::approval::CARD;
use shared::model::receipt::{PlanReference, Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::wire::headers::TraceCarrier;
use shared::wire::topology::streams;

use crate::scripted::{SCRIPTED, Script};
use crate::world::{Setup, World, reply};

/// Words, some of them bold, for some parts of the least size.
fn text() -> String {
    let words = (1..=120).map(|number| match number % 3 {
        0 => format!("**word {number}**"),
        _ => format!("word {number}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Forms and sizes before and after a restart.
const BEFORE: PartLayout = layout(TextFormat::TelegramHtml, 300);
const AFTER: PartLayout = layout(TextFormat::Plain, 130);

const fn layout(format: TextFormat, max: usize) -> PartLayout {
    PartLayout {
        format,
        limit: Some(ChunkLimit {
            max,
            unit: LengthUnit::Characters,
        }),
        max_lines: None,
    }
}

fn long() -> Reply {
    let mut reply = reply(1, SCRIPTED, "ann");
    reply.content = text();
    reply
}

fn accepted() -> Option<CallOutcome> {
    Some(CallOutcome::Accepted {
        platform_ids: vec!["7".to_owned()],
        live: None,
    })
}

fn setup(script: &Script) -> Setup {
    Setup {
        script: script.clone(),
        ..Setup::default()
    }
}

fn texts(parts: &[MessagePart]) -> Vec<String> {
    parts.iter().map(|part| part.content.clone()).collect()
}

/// The job of `reply` as it is stored.
async fn stored_job(world: &World, reply: &Reply) -> DeliveryJob {
    let sequence = world.publish(reply).await;
    let stored = world.bus.at_sequence(streams::DELIVERIES, sequence).await;
    let stored = stored.expect("the stream answers").expect("it is there");
    let place = StreamPlace {
        sequence,
        stored_at_ns: stored.stored_at_ns,
    };
    let destination = Destination::of_delivery(&stored.subject).expect("a destination");
    DeliveryJob::read(destination, place, &stored.headers, &stored.payload).expect("a reply")
}

/// Writes a receipt of `job` as a replica did that is gone.
async fn write(world: &World, job: &DeliveryJob, step: ReceiptStep) -> u64 {
    let receipt = job.new_receipt(SystemClock.now(), step);
    let out = OutgoingMessage::new(job.destination.receipt_subject(), &receipt);
    let out = out.header(DELIVERY_COPY, job.place.to_string());
    world.bus.publish(out).await.expect("it is stored").sequence
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_another_renderer_sends_the_remaining_parts_of_the_same_plan() {
    let (world, reply) = (World::start().await, long());
    let planned = texts(&plan_parts(&reply, BEFORE));
    assert!(planned.len() > 3 && plan_parts(&reply, AFTER).len() != planned.len());

    for sent in 1..planned.len() {
        let reply = Reply {
            id: ulid::Ulid::from_parts(reply.id.timestamp_ms() + sent as u64, sent as u128),
            delivery_context: {
                let mut to = reply.delivery_context.clone();
                to.peer_id = Some(format!("ann{sent}"));
                to
            },
            ..reply.clone()
        };
        // The call of the next part never ends.
        let answers = std::iter::repeat_n(accepted(), sent).chain([None]);
        let first = Script::new(Repetition::Recognised, answers).with_layout(BEFORE);
        let replica = world.replica("a", setup(&first));
        world.publish(&reply).await;
        eventually("the next part is called", async || first.calls().len() == sent + 1).await;
        replica.kill();

        let second = Script::new(Repetition::Recognised, []).with_layout(AFTER);
        let replica = world.replica("a", setup(&second));
        world.settled().await;
        replica.stop().await;

        assert_eq!(first.calls(), planned[..=sent], "{sent}");
        assert_eq!(second.calls(), planned[sent..], "{sent}");

        let steps = world.outcomes(&reply.delivery_context).await;
        let all = vec![vec!["7".to_owned()]; planned.len()];
        assert!(
            matches!(steps.last(), Some(ReceiptStep::Delivered { platform_ids, .. }) if *platform_ids == all),
            "{steps:?}"
        );
        let events = world.sent_events().await.into_iter();
        let of_reply = events.filter(|event| event.id.as_str().contains(&reply.id.to_string()));
        let seen: String = of_reply.map(|event| event.content + " ").collect();
        assert_eq!(seen.trim(), text().replace("**", ""), "{sent}");
    }
}

/// Deletes the receipts of `reply` that `is_lost` names.
async fn lose_receipts(world: &World, reply: &Reply, is_lost: impl Fn(&ReceiptStep) -> bool) {
    let subject = shared::wire::subject::receipt(&reply.delivery_context);
    let stored = world.bus.read_history(streams::RECEIPTS, &subject, 1, 1_000).await;
    for stored in stored.expect("the stream is read") {
        let receipt: Receipt = stored.decode().expect("a receipt");
        if is_lost(&receipt.step) {
            let deleted = world.bus.delete_message(streams::RECEIPTS, stored.sequence).await;
            assert!(deleted.expect("it is deleted"));
        }
    }
}

/// Sends one part of a long reply, loses the receipts that `is_lost` names, and goes on with another renderer. Returns
/// the reply and the calls of the second replica.
async fn resume_with_loss(world: &World, is_lost: impl Fn(&ReceiptStep) -> bool) -> (Reply, Vec<String>) {
    let reply = long();
    let first = Script::new(Repetition::Recognised, [accepted(), None]).with_layout(BEFORE);
    let replica = world.replica("a", setup(&first));
    world.publish(&reply).await;
    eventually("the next part is called", async || first.calls().len() == 2).await;
    eventually("the first part has its event", async || {
        !world.sent_events().await.is_empty()
    })
    .await;
    replica.kill();
    lose_receipts(world, &reply, is_lost).await;

    let second = Script::new(Repetition::Recognised, []).with_layout(AFTER);
    let replica = world.replica("a", setup(&second));
    world.settled().await;
    replica.stop().await;
    (reply, second.calls())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_plan_of_which_parts_were_sent_is_a_dead_letter_and_loses_no_words_in_silence() {
    let world = World::start().await;
    let is_plan = |step: &ReceiptStep| matches!(step, ReceiptStep::Planned { .. });
    let (_, calls) = resume_with_loss(&world, is_plan).await;
    assert_eq!(calls, [""; 0]);
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert!(
        letters[0].detail.contains("the plan of the parts is lost"),
        "{letters:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sent_parts_of_a_lost_plan_without_any_receipt_are_for_the_operator() {
    let world = World::start().await;
    let (reply, calls) = resume_with_loss(&world, |_| true).await;
    assert_eq!(calls, [""; 0]);
    assert!(world.outcomes(&reply.delivery_context).await.is_empty());
    let held = world.bus.held_bucket().entries().await.expect("the bucket is read");
    assert_eq!(held.len(), 1, "{held:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_without_a_call_may_still_change() {
    let (world, reply) = (World::start().await, long());
    let job = stored_job(&world, &reply).await;
    let former = planned_parts(&plan_parts(&reply, BEFORE));
    write(
        &world,
        &job,
        ReceiptStep::Planned {
            first: 0,
            parts: former,
        },
    )
    .await;

    let script = Script::new(Repetition::Recognised, []).with_layout(AFTER);
    let replica = world.replica("a", setup(&script));
    world.settled().await;
    assert_eq!(script.calls(), texts(&plan_parts(&reply, AFTER)));
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_of_the_last_part_is_that_of_the_plan() {
    let (world, reply) = (World::start().await, long());
    let job = stored_job(&world, &reply).await;
    let parts = plan_parts(&reply, BEFORE);
    let planned = planned_parts(&parts);
    let plan = Some(PlanReference {
        parts: u32::try_from(parts.len()).expect("few"),
        sha256: plan_hash(&planned),
        pieces: vec![
            write(
                &world,
                &job,
                ReceiptStep::Planned {
                    first: 0,
                    parts: planned,
                },
            )
            .await,
        ],
    });
    let delivered = ReceiptStep::Delivered {
        attempts: 1,
        parts: u32::try_from(parts.len()).expect("few"),
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        live: None,
        plan,
    };
    write(&world, &job, delivered).await;

    // The event was not published before the crash.
    let script = Script::new(Repetition::Recognised, []).with_layout(AFTER);
    let replica = world.replica("a", setup(&script));
    eventually("the event is there", async || world.sent_events().await.len() == 1).await;
    world.settled().await;
    replica.stop().await;

    assert!(script.calls().is_empty());
    let last = parts.last().expect("a part");
    assert_eq!(world.sent_events().await[0].content, last.plain_text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_owners_at_once_the_plan_of_the_first_call_holds() {
    let (world, reply) = (World::start().await, long());
    let job = stored_job(&world, &reply).await;
    let owner = || PartitionReceipts::new(world.bus.clone(), receipts_witness(&world.bus), Arc::new(SystemClock));
    let carrier = TraceCarrier::default();
    let write = async |owner: &PartitionReceipts, step: ReceiptStep| {
        let receipt = job.new_receipt(UnixMillis(1), step);
        owner.write(&job, &receipt, &carrier).await.expect("it is written")
    };
    let planned = |layout| ReceiptStep::Planned {
        first: 0,
        parts: planned_parts(&plan_parts(&reply, layout)),
    };
    let plan = |layout, written: &ReceiptWrite| {
        let parts = planned_parts(&plan_parts(&reply, layout));
        let ReceiptWrite::Stored(sequence) = written else {
            panic!("{written:?}");
        };
        PlanReference {
            parts: u32::try_from(parts.len()).expect("few"),
            sha256: plan_hash(&parts),
            pieces: vec![*sequence],
        }
    };
    let started = |by: &str, plan: &PlanReference| ReceiptStep::AttemptStarted {
        attempt: 1,
        part: 0,
        by: by.to_owned(),
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        uncounted: 0,
        plan: Some(plan.clone()),
    };

    // Both plan, and the second one begins first.
    let (former, present) = (owner(), owner());
    let of_former = plan(BEFORE, &write(&former, planned(BEFORE)).await);
    let of_present = plan(AFTER, &write(&present, planned(AFTER)).await);
    let begun = write(&present, started("b", &of_present)).await;
    assert!(matches!(begun, ReceiptWrite::Stored(_)), "{begun:?}");

    let late = write(&former, started("a", &of_former)).await;
    let ReceiptWrite::Superseded(DeliveryStanding::Open(RemainingWork { plan, part: 0, .. })) = late else {
        panic!("{late:?}");
    };
    assert_eq!(plan, StandingPlan::Parts(of_present));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_a_card_in_parts_have_none_of_its_words_and_its_parts_go_on_after_a_crash() {
    let (world, mut card) = (World::start().await, long());
    card.content = format!("Reply: approve K7Q2-M9PX\n{}", card.content);
    card.interactive = Some(json!({
        "kind": CARD, "approval": "a1", "code": "K7Q2-M9PX", "arguments_hash": "ab",
    }));
    let planned = texts(&plan_parts(&card, BEFORE));
    assert!(planned.len() > 3);
    let first = Script::new(Repetition::Recognised, [accepted(), None]).with_layout(BEFORE);
    let replica = world.replica("a", setup(&first));
    world.publish(&card).await;
    eventually("the next part is called", async || first.calls().len() == 2).await;
    replica.kill();

    let second = Script::new(Repetition::Recognised, []).with_layout(BEFORE);
    let replica = world.replica("a", setup(&second));
    world.settled().await;
    replica.stop().await;
    assert_eq!(second.calls(), planned[1..]);

    let receipts = format!("{:?}", world.receipts(&card.delivery_context).await);
    assert!(!receipts.contains("K7Q2") && !receipts.contains("word"), "{receipts}");
}
