//! Two replicas race each transition: one wins, and `AUDIT` has exactly the winner's.

use serde_json::json;
use shared::model::intent::IntentStatus;
use shared::model::intent::service::{CancelIntent, DecideIntent, RescheduleIntent};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};

use crate::world::{World, completed, proposal, ulid};

const ROUNDS: u128 = 8;

fn cancel(number: u128) -> CancelIntent {
    CancelIntent {
        id: ulid(number),
        agent: Some("default".to_owned()),
        turn: None,
        by: None,
        reason: "changed my mind".to_owned(),
    }
}

fn reschedule(number: u128, seconds: u64) -> RescheduleIntent {
    RescheduleIntent {
        id: ulid(number),
        schedule: serde_json::from_value(json!({ "type": "after", "seconds": seconds })).expect("a schedule"),
        agent: Some("default".to_owned()),
        by: None,
        reason: "moved".to_owned(),
    }
}

fn decide(number: u128, approve: bool) -> DecideIntent {
    DecideIntent {
        id: ulid(number),
        approve,
        by: "casey".to_owned(),
        response: None,
    }
}

fn timer(number: u128, nominal: shared::model::time::UnixMillis) -> IntentTimer {
    IntentTimer {
        intent: ulid(number),
        agent: "default".to_owned(),
        purpose: TimerPurpose::Fire,
        nominal,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_is_one() {
    let world = World::start(2).await;
    for number in 0..ROUNDS {
        let (one, two) = tokio::join!(
            world.desks[0].propose_intent(proposal(number, json!({}))),
            world.desks[1].propose_intent(proposal(number, json!({})))
        );
        assert_eq!(one.expect("an answer"), two.expect("an answer"));
        assert_eq!(
            world.ways(ulid(number)).await,
            [IntentStatus::Proposed, IntentStatus::Pending]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn firing_withdrawing_and_ending_have_one_winner() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    for number in 0..ROUNDS {
        let due = world.propose(number, json!({})).await.due.expect("a time");
        world.clock.set(due);
        let timer = timer(number, due);
        let (fired, again) = tokio::join!(one.clerk.handle_timer(&timer), two.clerk.handle_timer(&timer));
        fired.and(again).expect("both are fine");
        let running = [IntentStatus::Proposed, IntentStatus::Pending, IntentStatus::Running];

        assert_eq!(world.ways(ulid(number)).await, running, "one firing");

        let of_this = |id: &str| id.contains(&ulid(number).to_string());
        let dispatched: Vec<_> = world
            .dispatches()
            .await
            .into_iter()
            .filter(|(_, d)| of_this(d.event_id.as_str()))
            .collect();

        assert_eq!(dispatched.len(), 1, "one dispatch");

        let turn = &dispatched[0].1;
        world.turn(turn, completed).await;
        let (look, canceled) = tokio::join!(
            one.clerk.look_for_end("default", ulid(number), due),
            two.cancel_intent(cancel(number))
        );

        assert!(look.expect("it is over"));

        let end = world.ways(ulid(number)).await[3];
        match canceled {
            Ok(answer) => assert_eq!((answer.status, end), (IntentStatus::Canceled, IntentStatus::Canceled)),
            Err(error) => {
                assert_eq!(error.to_answer().0, 409, "{error}");
                assert_eq!(end, IntentStatus::Completed);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_against_a_firing_and_against_another_schedule() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    for number in 0..ROUNDS {
        let due = world.propose(number, json!({})).await.due.expect("a time");
        world.clock.set(due);
        let timer = timer(number, due);
        let (fired, canceled) = tokio::join!(one.clerk.handle_timer(&timer), two.cancel_intent(cancel(number)));
        fired.expect("fine");
        canceled.expect("pending and running may be withdrawn");
        let ways = world.ways(ulid(number)).await;

        assert_eq!(ways.last(), Some(&IntentStatus::Canceled));

        let ran = ways.contains(&IntentStatus::Running);
        let dispatched = world.dispatches().await;
        let count = dispatched
            .iter()
            .filter(|(_, d)| d.event_id.as_str().contains(&ulid(number).to_string()));

        assert_eq!(count.count(), usize::from(ran), "a dispatch only where it ran");
    }

    for number in ROUNDS..2 * ROUNDS {
        world.propose(number, json!({})).await;
        let (moved, canceled) = tokio::join!(
            one.reschedule_intent(reschedule(number, 60)),
            two.cancel_intent(cancel(number))
        );
        assert_eq!(canceled.expect("withdrawn").status, IntentStatus::Canceled);

        let ways = world.ways(ulid(number)).await;
        match moved {
            Ok(_) => assert_eq!(
                ways[2..],
                [IntentStatus::Rescheduled, IntentStatus::Pending, IntentStatus::Canceled]
            ),
            Err(error) => {
                assert_eq!(error.to_answer().0, 409, "{error}");
                assert_eq!(ways[2..], [IntentStatus::Canceled]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedules_follow_each_other_and_the_last_one_counts() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    for number in 0..ROUNDS {
        world.propose(number, json!({})).await;
        let (left, right) = tokio::join!(
            one.reschedule_intent(reschedule(number, 60)),
            two.reschedule_intent(reschedule(number, 120))
        );

        left.and(right).expect("both are taken");
        let records = world.history(ulid(number)).await;
        assert_eq!(records.len(), 6);

        let lineage: Vec<_> = records.iter().filter_map(|record| record.lineage.as_ref()).collect();
        assert_eq!(lineage[0].new, lineage[1].old, "the second stands on the first");

        let value = one.clerk.store.find(None, ulid(number)).await.expect("there").value;
        assert_eq!(value.intent.schedule, lineage[1].new);

        let stale = timer(number, world.now().plus(3_600_000));
        world.clock.advance(1);
        one.clerk.handle_timer(&stale).await.expect("ignored");

        assert_eq!(
            world.status(ulid(number)).await,
            IntentStatus::Pending,
            "the old time means nothing"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn approvers_have_one_word() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    for number in 0..ROUNDS {
        let asked = world.propose(number, json!({ "approval": "before_admission" })).await;
        assert_eq!(asked.status, IntentStatus::Proposed);
        assert!(asked.approval.is_some());

        let (yes, no) = tokio::join!(
            one.decide_intent(decide(number, true)),
            two.decide_intent(decide(number, false))
        );
        assert!(yes.is_ok() != no.is_ok(), "{yes:?} {no:?}");

        let won = if yes.is_ok() {
            IntentStatus::Pending
        } else {
            IntentStatus::Rejected
        };
        assert_eq!(world.ways(ulid(number)).await, [IntentStatus::Proposed, won]);
    }
}
