//! Conditions, recurrences, chains, what a user's message does, and what a crash leaves behind.

use std::sync::Arc;

use scheduler_svc::intent::conditions::ConditionWatcher;
use scheduler_svc::intent::reconcile;
use serde_json::json;
use shared::clock::{Clock as _, SystemClock};
use shared::model::intent::book::AgentBook;
use shared::model::intent::service::TellReset;
use shared::model::intent::{IntentCode, IntentStatus, event_id};
use shared::model::ledger::LedgerEntry;
use shared::model::session::SessionRef;
use shared::testing::eventually_some;
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::AUDIT;

use crate::world::{World, completed, proposal, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_matches_fires_once_on_any_number_of_readers() {
    let world = World::start(2).await;
    let waits = |words: &str| json!({ "schedule": { "type": "event_matches", "match": { "channel": "webchat", "contains": words } } });
    world.say("0", "an invoice before").await;
    world.propose(1, waits("invoice")).await;

    for desk in &world.desks {
        tokio::spawn(ConditionWatcher::new(Arc::clone(&desk.clerk)).run(world.shutdown.clone()));
    }

    world.say("1", "hello").await;
    world.propose(2, waits("hello")).await;
    world.say("2", "your invoice").await;
    eventually_some("a firing", || async {
        (world.status(ulid(1)).await == IntentStatus::Running).then_some(())
    })
    .await;

    let records = world.history(ulid(1)).await;
    assert_eq!(records.last().expect("one").code, IntentCode::ConditionMet);
    assert_eq!(world.until_dispatches(1).await.len(), 1);
    assert_eq!(
        world.status(ulid(2)).await,
        IntentStatus::Pending,
        "what was said before does not count"
    );

    world.say("3", "Hello again").await;
    eventually_some("the other", || async {
        (world.status(ulid(2)).await == IntentStatus::Running).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_is_looked_for_when_it_could_be_and_a_deadline_ends_it() {
    let world = World::start(1).await;
    let clerk = &world.desks[0].clerk;
    let idle = json!({ "schedule": { "type": "user_idle", "for_seconds": 60, "deadline_seconds": 600 } });
    let begun = world.now();
    world.propose(1, idle.clone()).await;
    world.propose(2, idle).await;
    world.say("1", "still here").await;

    let said = SystemClock.now();
    world.clock.set(begun.plus(60_000).max(said.plus(30_000)));
    clerk
        .handle_due("default", ulid(1), world.now(), None)
        .await
        .expect("looked");

    assert_eq!(world.status(ulid(1)).await, IntentStatus::Pending, "somebody spoke");

    world.clock.set(SystemClock.now().plus(61_000));
    clerk
        .handle_due("default", ulid(1), world.now(), None)
        .await
        .expect("looked");
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Running);

    let events = json!({ "schedule": { "type": "event_matches", "match": { "from": "x" }, "deadline_seconds": 60 } });
    world.propose(3, events).await;
    world.clock.advance(60_000);
    clerk
        .handle_due("default", ulid(3), world.now(), None)
        .await
        .expect("over");

    assert_eq!(
        world.history(ulid(3)).await.last().expect("one").code,
        IntentCode::DeadlinePassed
    );

    let book = world
        .bus
        .kv::<AgentBook>(INTENTS)
        .get("a.default")
        .await
        .expect("KV")
        .expect("a book");

    assert!(!book.value.bookings.contains_key(&ulid(3)), "its reservation is free");
}

/// Where the answer goes says nothing about where the user is: the conversation counts that it was asked for in.
#[tokio::test(flavor = "multi_thread")]
async fn quiet_is_that_of_the_conversation_that_asked() {
    let world = World::start(1).await;
    let clerk = &world.desks[0].clerk;
    let elsewhere = json!({
        "parameters": { "subject": "s", "message": "m", "target": "telegram/5" },
        "schedule": { "type": "user_idle", "for_seconds": 60, "deadline_seconds": 600 }
    });

    let asked = world.propose(1, elsewhere.clone()).await;
    assert_eq!(asked.status, IntentStatus::Pending, "{asked:?}");

    let before = SystemClock.now();
    world.say("1", "still here").await;

    // Whatever the machine does in between: the message is stored no earlier than this.
    world.clock.set(before.plus(59_000).max(world.now().plus(30_000)));
    clerk
        .handle_due("default", ulid(1), world.now(), None)
        .await
        .expect("looked");
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Pending, "somebody spoke");

    world.clock.set(SystemClock.now().plus(62_000));
    clerk
        .handle_due("default", ulid(1), world.now(), None)
        .await
        .expect("looked");
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Running);

    let dispatch = world.dispatches().await.pop().expect("a dispatch").1;
    assert_eq!(dispatch.delivery_context.channel, "telegram", "its answer goes there");

    for more in [elsewhere, json!({ "cancel_on_user_turn": true })] {
        let mut nowhere = proposal(2, more);
        nowhere.delivery_context.peer_id = None;
        nowhere.id = None;
        let refused = world.desks[0].propose_intent(nowhere).await.expect("an answer");
        let code = refused.rejection.map(|rejection| rejection.code());
        assert_eq!(code, Some("bad_schedule"), "there is no user to wait for");
    }
}

/// A session that begins anew ends its chat: told of at once, found in the ledger where nobody told.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_ends_the_chat_of_what_was_asked_for_before() {
    let world = World::start(2).await;
    let main = SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    };

    let ended = json!({ "schedule": { "type": "chat_ended", "idle_seconds": 3_600 } });
    world.propose(1, ended.clone()).await;
    let mut elsewhere = proposal(2, ended.clone());
    elsewhere.session = "other".to_owned();
    world.desks[0].propose_intent(elsewhere).await.expect("an answer");
    world.clock.set(SystemClock.now().plus(1_000));
    let told = TellReset {
        agent: "default".to_owned(),
        session: "main".to_owned(),
        at: world.now(),
    };

    world.propose(3, ended).await;
    let (one, other) = tokio::join!(
        world.desks[0].session_reset(told.clone()),
        world.desks[1].session_reset(told)
    );

    one.and(other).expect("heard");
    let stands = async || {
        [
            world.status(ulid(1)).await,
            world.status(ulid(2)).await,
            world.status(ulid(3)).await,
        ]
    };

    let (pending, running) = (IntentStatus::Pending, IntentStatus::Running);
    assert_eq!(stands().await, [running, pending, pending]);
    assert_eq!(world.dispatches().await.len(), 1);

    world.clock.advance(1_000);
    let reason = "idle 30 min".to_owned();
    world.append(&main, LedgerEntry::SessionReset { reason }).await;
    world.append(&main, LedgerEntry::ReplyPublished { turn: ulid(9) }).await;
    world.say("1", "still here").await;

    for number in [2, 3] {
        let clerk = &world.desks[0].clerk;
        clerk
            .handle_due("default", ulid(number), world.now(), None)
            .await
            .expect("looked");
    }

    assert_eq!(stands().await, [running, pending, running]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_message_makes_it_moot_where_it_asked_for_that() {
    let world = World::start(1).await;
    let due = world
        .propose(1, json!({ "cancel_on_user_turn": true }))
        .await
        .due
        .expect("a time");

    world.propose(2, json!({})).await;
    eventually_some("another millisecond", || async {
        (SystemClock.now() > world.now().plus(5)).then_some(())
    })
    .await;

    world.say("1", "never mind").await;
    world.clock.set(due);

    for number in [1, 2] {
        world.desks[0]
            .clerk
            .handle_due("default", ulid(number), due, None)
            .await
            .expect("fine");
    }

    assert_eq!(
        world.history(ulid(1)).await.last().expect("one").code,
        IntentCode::UserTurn
    );
    assert_eq!(world.status(ulid(2)).await, IntentStatus::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recurring_one_goes_on_and_a_chain_ends() {
    let world = World::start(1).await;
    let clerk = &world.desks[0].clerk;
    let start = jiff::Timestamp::from_millisecond(world.now().0).expect("a time");
    let local = (start + jiff::SignedDuration::from_secs(60))
        .strftime("%Y-%m-%dT%H:%M:%S")
        .to_string();
    let rule = json!({ "schedule": { "type": "rrule", "rule": "FREQ=MINUTELY;INTERVAL=2;COUNT=2", "start": local, "zone": "UTC" } });
    let mut due = world.propose(1, rule).await.due.expect("a time");

    for round in 0..2 {
        world.clock.set(due);
        clerk.handle_due("default", ulid(1), due, None).await.expect("fired");
        let dispatch = world.dispatches().await.pop().expect("a dispatch").1;
        world.turn(&dispatch, completed).await;

        assert!(
            clerk.look_for_end("default", ulid(1), due).await.expect("read"),
            "round {round}"
        );

        let value = clerk.store.find(None, ulid(1)).await.expect("there").value;
        due = value.due.unwrap_or(due);
    }

    let ways = world.ways(ulid(1)).await;
    assert_eq!(
        ways[2..],
        [
            IntentStatus::Running,
            IntentStatus::Pending,
            IntentStatus::Running,
            IntentStatus::Completed
        ]
    );

    let mut parent = ulid(1);
    let mut depth = 0;
    let refused = loop {
        let mut next = proposal(100 + depth, json!({}));
        next.causation = Some(event_id(parent, world.now()).expect("an id"));

        let answer = world.desks[0].propose_intent(next).await.expect("an answer");
        if answer.status == IntentStatus::Rejected {
            break answer.rejection.expect("a reason");
        }
        (parent, depth) = (answer.id, depth + 1);
    };

    assert_eq!((depth, refused.code()), (8, "over_budget"));
}

/// A value is there and its records are not, its timer is lost, its turn ended unheard: the walk repairs all of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_reconciler_repairs_what_a_crash_leaves() {
    let world = World::start(1).await;
    let clerk = &world.desks[0].clerk;
    let due = world.propose(1, json!({})).await.due.expect("a time");
    let mut orphan = clerk.store.find(None, ulid(1)).await.expect("there").value;
    orphan.intent.id = ulid(2);
    orphan.records.iter_mut().for_each(|record| record.intent = ulid(2));
    let key = scheduler_svc::intent::store::key("default", ulid(2));

    world
        .bus
        .kv(INTENTS)
        .create(&key, &orphan)
        .await
        .expect("as if cut off before the audit");

    world.clock.set(due.plus(120_000));
    reconcile::reconcile_all(clerk, 0, &world.shutdown)
        .await
        .expect("walked");

    for number in [1, 2] {
        assert_eq!(world.status(ulid(number)).await, IntentStatus::Running, "overdue");
        assert_eq!(world.history(ulid(number)).await.len(), 3);
    }

    for (_, dispatch) in world.dispatches().await {
        world.turn(&dispatch, completed).await;
    }

    world.clock.advance(120_000);
    reconcile::reconcile_all(clerk, 0, &world.shutdown)
        .await
        .expect("walked");

    for number in [1, 2] {
        assert_eq!(world.ways(ulid(number)).await[3], IntentStatus::Completed);
    }

    let before = world.bus.stream_state(AUDIT).await.expect("AUDIT").last;
    reconcile::reconcile_all(clerk, 0, &world.shutdown)
        .await
        .expect("walked");
    assert_eq!(
        world.bus.stream_state(AUDIT).await.expect("AUDIT").last,
        before,
        "nothing twice"
    );

    world.clock.advance(31 * 86_400_000);
    reconcile::reconcile_all(clerk, u64::MAX, &world.shutdown)
        .await
        .expect("walked");
    assert!(
        clerk.store.get(None, ulid(1)).await.expect("KV").is_none(),
        "forgotten after a month"
    );
}
