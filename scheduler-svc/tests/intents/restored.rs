//! KV `intents`, put back to an older state: every intent is where `AUDIT` says, and nothing fires twice.

use std::sync::Arc;

use scheduler_svc::intent::reconcile;
use scheduler_svc::intent::store::{STREAM, key};
use serde_json::{Value, json};
use shared::bus::position::void_positions;
use shared::model::approval::ConfirmationTerms;
use shared::model::dispatch::Dispatch;
use shared::model::intent::book::AgentBook;
use shared::model::intent::mark::IntentMark;
use shared::model::intent::service::{CancelIntent, DecideIntent, GetIntent, RescheduleIntent};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{Intent, IntentCode, IntentSchedule, IntentStatus};
use shared::model::time::UnixMillis;
use shared::testing::eventually_some;
use shared::wire::subject;
use shared::wire::topology::buckets::{APPROVALS, INTENTS};
use shared::wire::topology::streams::SCHEDULES;

use crate::world::{World, completed, ulid};

impl World {
    /// KV has `older` again, and `AUDIT` all that came later.
    async fn put_back(&self, older: &Intent) {
        // Records are on their way to `AUDIT` still.
        self.history(older.intent.id).await;
        let key = key(&older.intent.agent, older.intent.id);
        self.bus.kv(INTENTS).put(&key, older).await.expect("put back");
    }

    async fn due(&self, replica: usize, number: u128, nominal: UnixMillis) {
        let clerk = &self.desks[replica].clerk;
        clerk
            .handle_due("default", ulid(number), nominal, None)
            .await
            .expect("it goes on");
    }

    async fn ring(&self, number: u128, purpose: TimerPurpose, nominal: UnixMillis) {
        let timer = timer(number, purpose, nominal);
        self.desks[0].clerk.handle_timer(&timer).await.expect("it goes on");
    }

    /// The timer's message, if it waits.
    async fn waits(&self, number: u128, purpose: TimerPurpose, nominal: UnixMillis) -> bool {
        let set = subject::intent_timer(&format!("{}-{}{nominal}", ulid(number), purpose.subject_letter()));
        let found = self.bus.last_on_subject(SCHEDULES, &set).await.expect("SCHEDULES");
        found.is_some()
    }

    /// How many values were behind `AUDIT` for any replica.
    fn caught_up(&self) -> u64 {
        self.desks.iter().map(|desk| desk.clerk.store.caught_up()).sum()
    }

    async fn last_dispatch(&self) -> Dispatch {
        self.dispatches().await.pop().expect("a dispatch").1
    }

    /// The turn of the last dispatch ends, and with it the firing `nominal`.
    async fn ends(&self, number: u128, nominal: UnixMillis) {
        let dispatch = self.last_dispatch().await;
        self.turn(&dispatch, completed).await;
        self.ring(number, TimerPurpose::Outcome, nominal).await;
    }
}

fn timer(number: u128, purpose: TimerPurpose, nominal: UnixMillis) -> IntentTimer {
    IntentTimer {
        intent: ulid(number),
        agent: "default".to_owned(),
        purpose,
        nominal,
    }
}

fn every_hour() -> Value {
    let rule = json!({ "type": "cron", "expression": "0 * * * *", "zone": "UTC", "until": "2099-01-01T00:00" });
    json!({ "schedule": rule })
}

fn cancel(number: u128) -> CancelIntent {
    CancelIntent {
        id: ulid(number),
        agent: None,
        turn: None,
        by: Some("casey".to_owned()),
        reason: "no".to_owned(),
    }
}

fn moved(number: u128, schedule: Value) -> RescheduleIntent {
    RescheduleIntent {
        id: ulid(number),
        schedule: serde_json::from_value(schedule).expect("a schedule"),
        agent: None,
        by: None,
        reason: "moved".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_under_way_is_adopted_and_never_begun_again() {
    let world = World::start(2).await;
    let due = world.propose(1, json!({})).await.due.expect("a time");
    let pending = world.value(1).await;
    world.clock.set(due);
    world.due(0, 1, due).await;
    let fired = world.value(1).await;
    world.put_back(&pending).await;

    // Both replicas have its timer, and neither heard of the other.
    tokio::join!(world.due(0, 1, due), world.due(1, 1, due));
    assert_eq!(world.caught_up(), 1, "one of them has written");

    let adopted = world.value(1).await;
    let expected = Intent {
        writer: adopted.writer.clone(),
        ..fired
    };
    assert_eq!(adopted, expected);
    assert_eq!(world.dispatches().await.len(), 1);
    assert!(
        world.waits(1, TimerPurpose::Outcome, due).await,
        "its end is looked for"
    );

    world.ends(1, due).await;
    let ways = [
        IntentStatus::Proposed,
        IntentStatus::Pending,
        IntentStatus::Running,
        IntentStatus::Completed,
    ];
    assert_eq!(world.ways(ulid(1)).await, ways);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_stays_an_end_whichever_value_comes_back() {
    let world = World::start(2).await;
    let due = world.propose(1, json!({})).await.due.expect("a time");
    let pending = world.value(1).await;
    world.clock.set(due);
    world.due(0, 1, due).await;
    let running = world.value(1).await;
    world.ends(1, due).await;

    for (number, older) in (1..).zip([pending, running]) {
        world.put_back(&older).await;

        for purpose in [TimerPurpose::Fire, TimerPurpose::Outcome] {
            world.ring(1, purpose, due).await;
        }

        assert_eq!(world.status(ulid(1)).await, IntentStatus::Completed);
        assert_eq!(world.caught_up(), number);
    }

    assert_eq!(world.history(ulid(1)).await.len(), 4, "nothing is added to its history");
    assert_eq!(world.dispatches().await.len(), 1, "and nothing fired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_one_stays_withdrawn() {
    let world = World::start(1).await;
    let desk = &world.desks[0];
    let due = world.propose(1, json!({})).await.due.expect("a time");
    let pending = world.value(1).await;
    desk.cancel_intent(cancel(1)).await.expect("withdrawn");
    world.put_back(&pending).await;

    let told = desk
        .get(GetIntent {
            id: ulid(1),
            agent: None,
        })
        .await
        .expect("told");
    assert_eq!(told.intent.status, IntentStatus::Canceled);

    world.put_back(&pending).await;
    let again = desk.cancel_intent(cancel(1)).await.expect("it is fine");
    assert_eq!(again.status, IntentStatus::Canceled);

    world.put_back(&pending).await;
    world.clock.set(due);
    world.ring(1, TimerPurpose::Fire, due).await;
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Canceled);
    assert!(world.dispatches().await.is_empty());
    assert_eq!(world.history(ulid(1)).await.len(), 3);

    // Its reservation is gone as well: nothing of it is left in the agent's book.
    let book = world.bus.kv::<AgentBook>(INTENTS).get("a.default").await.expect("KV");
    assert_eq!(book.expect("a book").value.bookings.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recurring_one_goes_on_with_its_next_occurrence() {
    let world = World::start(1).await;
    let first = world.propose(1, every_hour()).await.due.expect("a time");
    let pending = world.value(1).await;
    world.clock.set(first);
    world.due(0, 1, first).await;
    world.ends(1, first).await;
    let second = world.value(1).await.due.expect("the next one");
    world.put_back(&pending).await;

    // Its timer is lost as well: whoever brings the intent to where it is sets another.
    for purpose in [TimerPurpose::Fire, TimerPurpose::Outcome] {
        let set = subject::intent_timer(&format!("{}-{}{second}", ulid(1), purpose.subject_letter()));
        world.bus.purge_subject(SCHEDULES, &set).await.expect("purged");
    }

    world.ring(1, TimerPurpose::Fire, first).await;
    let value = world.value(1).await;
    assert_eq!(
        (value.status, value.due, value.fired),
        (IntentStatus::Pending, Some(second), 1)
    );
    assert_eq!(world.dispatches().await.len(), 1, "the first occurrence is over");
    assert!(world.waits(1, TimerPurpose::Fire, second).await);

    world.clock.set(second);
    world.ring(1, TimerPurpose::Fire, second).await;
    assert_eq!(world.dispatches().await.len(), 2);
    world.ends(1, second).await;

    let value = world.value(1).await;
    assert_eq!((value.status, value.fired), (IntentStatus::Pending, 2));
    let withdrawn = world.desks[0].cancel_intent(cancel(1)).await.expect("withdrawn");
    assert_eq!(withdrawn.status, IntentStatus::Canceled);
    assert_eq!(world.history(ulid(1)).await.len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_schedule_is_not_forgotten() {
    let world = World::start(1).await;
    let desk = &world.desks[0];
    let old_due = world.propose(1, json!({})).await.due.expect("a time");
    let pending = world.value(1).await;

    let condition = json!({ "type": "event_matches", "match": { "channel": "webchat", "contains": "hired" } });
    desk.reschedule_intent(moved(1, condition)).await.expect("moved");
    let waiting = world.value(1).await;
    let (marks, mark) = (world.bus.kv::<IntentMark>(INTENTS), format!("c.default.{}", ulid(1)));
    marks.delete(&mark, None).await.expect("no mark");
    world.put_back(&pending).await;

    world.clock.set(old_due);
    world.ring(1, TimerPurpose::Fire, old_due).await;
    assert!(world.dispatches().await.is_empty(), "not at its old time");

    let value = world.value(1).await;
    assert!(matches!(value.intent.schedule, IntentSchedule::EventMatches { .. }));
    assert_eq!((value.due, value.deadline), (None, waiting.deadline));
    assert_eq!(value.lineage, waiting.lineage);
    let deadline = value.deadline.expect("a deadline");
    assert!(world.waits(1, TimerPurpose::Fire, deadline).await);
    let mark = marks.get(&mark).await.expect("KV");
    assert_eq!(mark.expect("its mark").value.from, value.events_from);

    desk.reschedule_intent(moved(1, json!({ "type": "after", "seconds": 60 })))
        .await
        .expect("moved again");
    assert_eq!(world.history(ulid(1)).await.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_again_about_what_was_decided() {
    let world = World::start(1).await;
    let desk = &world.desks[0];
    let asked = world.propose(1, json!({ "approval": "before_admission" })).await;
    assert_eq!(asked.status, IntentStatus::Proposed);
    let proposed = world.value(1).await;
    let decision = DecideIntent {
        id: ulid(1),
        approve: true,
        by: "casey".to_owned(),
        response: None,
    };
    desk.decide_intent(decision).await.expect("decided");
    let admitted = world.value(1).await;
    assert_eq!(admitted.status, IntentStatus::Pending);
    world.put_back(&proposed).await;

    // The approvals are put back as well.
    let approvals = world.bus.kv::<ConfirmationTerms>(APPROVALS);
    let approval = format!("intent.{}.admission", ulid(1));
    approvals.delete(&approval, None).await.expect("deleted");

    world.due(0, 1, world.now()).await;
    let value = world.value(1).await;
    assert_eq!((value.status, value.due), (IntentStatus::Pending, admitted.due));
    assert!(approvals.get(&approval).await.expect("KV").is_none(), "nobody is asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_read_an_older_value_takes_nothing_for_put_back() {
    let world = World::start(2).await;
    world.propose(1, json!({})).await;
    let read = world.value(1).await;
    world.desks[1].cancel_intent(cancel(1)).await.expect("withdrawn");
    world.history(ulid(1)).await;

    let store = &world.desks[0].clerk.store;
    let refused = store.ensure_audited(&read).await.expect_err("it went on");
    assert!(refused.to_string().contains("concurrent update"), "{refused}");
    assert_eq!(
        (world.caught_up(), world.status(ulid(1)).await),
        (0, IntentStatus::Canceled)
    );
}

/// The bucket's own files, as they were before the firings, under replicas that run.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_put_back_is_brought_up_to_audit_without_being_asked() {
    let mut world = World::start(1).await;
    let first = world.propose(1, every_hour()).await.due.expect("a time");
    world.propose(2, json!({})).await;
    world.propose(3, json!({})).await;
    world.server.stop().await;
    let older = world.server.copy_of(STREAM);
    world.server.restart().await;

    world.clock.set(first);
    eventually_some("the server is back", || async {
        let clerk = &world.desks[0].clerk;
        clerk.handle_due("default", ulid(1), first, None).await.ok()
    })
    .await;
    world.ends(1, first).await;
    let next = world.value(1).await.due;
    world.desks[0].cancel_intent(cancel(2)).await.expect("withdrawn");
    world.desks[0]
        .reschedule_intent(moved(3, json!({ "type": "after", "seconds": 9_000 })))
        .await
        .expect("moved");
    let later = world.value(3).await.due;
    for number in 1..=3 {
        world.history(ulid(number)).await;
    }

    let walking = tokio::spawn(reconcile::run(
        Arc::clone(&world.desks[0].clerk),
        world.shutdown.clone(),
    ));
    world.server.stop().await;
    world.server.put_back(STREAM, &older);
    world.server.restart().await;

    let is_there = async |number: u128| {
        let found = world.desks[0].clerk.store.find(None, ulid(number)).await.ok()?;
        Some((found.value.status, found.value.due))
    };
    eventually_some("all are where AUDIT says", || async {
        let all = (is_there(1).await?, is_there(2).await?, is_there(3).await?);
        let expected = (
            (IntentStatus::Pending, next),
            (IntentStatus::Canceled, None),
            (IntentStatus::Pending, later),
        );
        (all == expected).then_some(())
    })
    .await;

    assert_eq!(world.caught_up(), 3);
    eventually_some("none is behind any more", || async {
        void_positions().is_empty().then_some(())
    })
    .await;
    assert_eq!(world.dispatches().await.len(), 1);
    let codes = world.history(ulid(1)).await;
    assert_eq!(codes.last().expect("records").code, IntentCode::NextOccurrence);

    world.shutdown.trigger();
    walking.await.expect("it ends");
}
