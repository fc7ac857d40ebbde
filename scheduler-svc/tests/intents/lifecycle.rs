//! From the proposal to the end, over the service, in real time and past a server's restart.

use std::sync::Arc;

use scheduler_svc::intent::registry::KindRegistry;
use scheduler_svc::intent::service::{run, serve};
use serde_json::json;
use shared::bus::RequestError;
use shared::clock::SystemClock;
use shared::model::intent::service::{
    CancelIntent, DecideIntent, GetIntent, IntentAnswer, IntentHistory, IntentList, ListIntents, RescheduleIntent,
};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{IntentCode, IntentRejection, IntentStatus, firing_of};
use shared::model::reply::Reply;
use shared::testing::eventually_some;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::{CLAIMS, DELIVERIES};

use crate::world::{PATIENCE, World, completed, needs, proposal, ulid};

async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
    world: &World,
    what: &str,
    question: &Q,
) -> Result<A, RequestError> {
    let subject = format!("nexus.svc.intent.{what}");
    world.bus.request(&subject, Headers::new(), question, PATIENCE).await
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn what_is_asked_over_the_service_is_told_over_it() {
    let world = World::start(1).await;
    let _served = serve(&world.bus, &world.desks[0]).await.expect("served");
    let admitted: IntentAnswer = ask(&world, "propose", &proposal(1, json!({})))
        .await
        .expect("an answer");

    assert_eq!(
        (admitted.status, admitted.rejection.clone()),
        (IntentStatus::Pending, None)
    );

    let again: IntentAnswer = ask(&world, "propose", &proposal(1, json!({})))
        .await
        .expect("an answer");
    assert_eq!(again, admitted, "the same name, the same intent");

    let refused: IntentAnswer = ask(&world, "propose", &proposal(2, json!({ "kind": "dance" })))
        .await
        .expect("an answer");
    assert_eq!(refused.status, IntentStatus::Rejected);

    let kind = "dance".to_owned();
    assert_eq!(refused.rejection, Some(IntentRejection::UnknownKind { kind }));
    assert_eq!(
        world.ways(ulid(2)).await,
        [IntentStatus::Proposed, IntentStatus::Rejected]
    );

    let moved = RescheduleIntent {
        id: ulid(1),
        schedule: serde_json::from_value(json!({ "type": "at", "local": "2020-01-01T00:00", "zone": "UTC" }))
            .expect("one"),
        agent: Some("default".to_owned()),
        by: None,
        reason: "moved".to_owned(),
    };

    let not: IntentAnswer = ask(&world, "reschedule", &moved).await.expect("an answer");
    assert_eq!(not.rejection.map(|rejection| rejection.code()), Some("bad_schedule"));
    assert_eq!((not.status, not.due), (admitted.status, admitted.due), "as it was");

    let moved = RescheduleIntent {
        schedule: serde_json::from_value(json!({ "type": "after", "seconds": 60 })).expect("one"),
        ..moved
    };
    let moved: IntentAnswer = ask(&world, "reschedule", &moved).await.expect("an answer");
    assert_eq!(moved.due, Some(world.now().plus(60_000)));

    let question = ListIntents {
        status: Some(IntentStatus::Pending),
        ..ListIntents::default()
    };
    let listed: IntentList = ask(&world, "list", &question).await.expect("a list");
    assert_eq!(
        listed.intents.iter().map(|i| i.intent.id).collect::<Vec<_>>(),
        [ulid(1)]
    );

    let stranger = GetIntent {
        id: ulid(1),
        agent: Some("other".to_owned()),
    };
    let unknown = ask::<_, IntentHistory>(&world, "get", &stranger)
        .await
        .expect_err("not its own");

    assert!(matches!(unknown, RequestError::Service { code: 404, .. }), "{unknown}");

    let own = GetIntent {
        id: ulid(1),
        agent: None,
    };
    let told: IntentHistory = ask(&world, "get", &own).await.expect("told");
    assert_eq!(told.history.len(), 4);
    assert_eq!(told.history[2].lineage.as_ref().expect("lineage").why, "moved");
    assert!(told.history[0].proposed.is_some(), "replay needs no model");

    let withdrawn = CancelIntent {
        id: ulid(1),
        agent: None,
        turn: None,
        by: Some("casey".to_owned()),
        reason: "no".to_owned(),
    };

    let answer: IntentAnswer = ask(&world, "cancel", &withdrawn).await.expect("an answer");
    assert_eq!(answer.status, IntentStatus::Canceled);

    let answer: IntentAnswer = ask(&world, "cancel", &withdrawn).await.expect("the same again");
    assert_eq!(answer.status, IntentStatus::Canceled);
    assert_eq!(world.history(ulid(1)).await.len(), 5, "once");
}

/// Real time, two replicas that pull the timers, a server that is killed in between: fired once, ended once.
#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_fires_in_real_time_past_a_restart_of_the_server() {
    let mut world = World::start(0).await;
    let mut running = Vec::new();
    for number in 0..2 {
        let needs = needs(&world.bus, Arc::new(SystemClock), number, &world.shutdown);
        world.desks.push(scheduler_svc::intent::service::new_desk(
            &needs,
            KindRegistry::shipped_registry().expect("kinds"),
        ));
        running.push(tokio::spawn(run(
            needs,
            KindRegistry::shipped_registry().expect("kinds"),
        )));
    }

    let follow_up = json!({
        "kind": "follow_up", "parameters": { "prompt": "How was it?" }, "schedule": { "type": "after", "seconds": 3 }
    });
    for number in 1..=5 {
        assert_eq!(
            world.propose(number, follow_up.clone()).await.status,
            IntentStatus::Pending
        );
    }

    world.server.restart().await;
    let dispatched = world.until_dispatches(5).await;
    assert_eq!(dispatched.len(), 5);

    for (_, dispatch) in &dispatched {
        assert_eq!(dispatch.message.content, "How was it?");
        assert!(firing_of(&dispatch.event_id).is_some());

        let claim = subject::claim(&dispatch.target);
        eventually_some("the session is woken", || async {
            world.bus.last_on_subject(CLAIMS, &claim).await.expect("claims")
        })
        .await;

        world.turn(dispatch, completed).await;
    }

    for number in 1..=5 {
        eventually_some("an end", || async {
            (world.status(ulid(number)).await == IntentStatus::Completed).then_some(())
        })
        .await;
        let ways = world.ways(ulid(number)).await;
        assert_eq!(
            ways[1..],
            [IntentStatus::Pending, IntentStatus::Running, IntentStatus::Completed]
        );
    }

    let fired = world.events().await;
    assert_eq!(fired.len(), 5, "one event each: {fired:?}");

    world.shutdown.trigger();

    for replica in running {
        replica.await.expect("it ends").expect("in good order");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_before_fire_waits_lapses_and_may_come_early() {
    let world = World::start(1).await;
    let desk = &world.desks[0];
    let strict = json!({ "approval": "before_fire" });

    let decide = |number, approve| DecideIntent {
        id: ulid(number),
        approve,
        by: "casey".to_owned(),
        response: Some("fine".to_owned()),
    };

    let mut due = world.now();
    for number in 1..=4 {
        due = world.propose(number, strict.clone()).await.due.expect("a time");
    }

    desk.decide_intent(decide(1, true)).await.expect("early");
    assert_eq!(
        world.status(ulid(1)).await,
        IntentStatus::Pending,
        "not before its time"
    );

    world.clock.set(due);

    for number in 1..=4 {
        desk.clerk
            .handle_due("default", ulid(number), due, None)
            .await
            .expect("fine");
    }

    assert_eq!(world.status(ulid(1)).await, IntentStatus::Running);
    assert_eq!(
        world.status(ulid(2)).await,
        IntentStatus::Pending,
        "it waits for a word"
    );

    desk.decide_intent(decide(2, true)).await.expect("yes");
    assert_eq!(world.status(ulid(2)).await, IntentStatus::Running);

    desk.decide_intent(decide(3, false)).await.expect("no");
    assert_eq!(
        world.history(ulid(3)).await.last().expect("one").code,
        IntentCode::Denied
    );

    world.clock.advance(15 * 60_000);
    desk.clerk
        .handle_due("default", ulid(4), due, None)
        .await
        .expect("lapsed");
    assert_eq!(
        world.history(ulid(4)).await.last().expect("one").code,
        IntentCode::ApprovalExpired
    );

    let late = desk.decide_intent(decide(4, true)).await.expect_err("too late");
    assert_eq!(late.to_answer().0, 409);

    for nobody in ["agent:default", "default", "mallory", ""] {
        let said = desk
            .decide_intent(DecideIntent {
                by: nobody.to_owned(),
                ..decide(2, true)
            })
            .await;

        assert_eq!(said.expect_err("not theirs").to_answer().0, 403, "{nobody}");
    }

    for number in [1, 2] {
        let fired = world.history(ulid(number)).await.pop().expect("one");
        assert_eq!((fired.by.as_str(), fired.why.as_str()), ("casey", "fine"), "{number}");
    }
}

/// The approver is asked before it is due; what nobody agrees to costs that occurrence, and only the last one the intent.
#[tokio::test(flavor = "multi_thread")]
async fn each_occurrence_is_asked_for_ahead_and_lapses_alone() {
    let world = World::start(2).await;
    let clerk = &world.desks[0].clerk;
    let now = jiff::Timestamp::from_millisecond(world.now().0).expect("a time");
    let start = (now + jiff::SignedDuration::from_secs(7_200)).strftime("%Y-%m-%dT%H:%M:%S");
    let rule = json!({ "type": "rrule", "rule": "FREQ=DAILY;COUNT=3", "start": start.to_string(), "zone": "UTC" });
    let asked = world
        .propose(1, json!({ "schedule": rule, "approval": "before_fire" }))
        .await;
    let mut due = asked.due.expect("a time");

    let value = |due: shared::model::time::UnixMillis| IntentTimer {
        intent: ulid(1),
        agent: "default".to_owned(),
        purpose: TimerPurpose::Approval,
        nominal: due,
    };

    let standing = async || clerk.store.find(None, ulid(1)).await.expect("there").value;
    for round in 0..3 {
        world.clock.set(due.plus(-900_000));
        assert!(
            !clerk.approvals.was_asked(&standing().await).await.expect("KV"),
            "{round}"
        );

        clerk.handle_timer(&value(due)).await.expect("asked ahead");
        assert!(clerk.approvals.was_asked(&standing().await).await.expect("KV"));

        world.clock.set(due);
        clerk.handle_due("default", ulid(1), due, None).await.expect("waits");
        assert_eq!(world.status(ulid(1)).await, IntentStatus::Pending, "{round}");

        world.clock.set(due.plus(900_000));
        let timer = value(due);
        let (one, other) = tokio::join!(clerk.handle_timer(&timer), world.desks[1].clerk.handle_timer(&timer));
        one.and(other).expect("lapsed");
        let last = world.history(ulid(1)).await;
        let codes: Vec<IntentCode> = last.iter().rev().take(2).map(|record| record.code).collect();

        if round == 2 {
            assert_eq!(codes[0], IntentCode::ApprovalExpired);
            break;
        }

        assert_eq!(
            codes,
            [IntentCode::NextOccurrence, IntentCode::ApprovalExpired],
            "{round}"
        );

        due = standing().await.due.expect("the next one");
    }

    assert_eq!(world.status(ulid(1)).await, IntentStatus::Canceled);
    assert!(world.dispatches().await.is_empty());

    let told = world
        .bus
        .read_history(DELIVERIES, "nexus.dl.>", 1, 100)
        .await
        .expect("deliveries");
    assert_eq!(
        told.len(),
        3,
        "one card for each occurrence, however often it was asked"
    );

    for stored in told {
        let card: Reply = stored.decode().expect("a reply");
        assert_eq!(card.delivery_context.peer_id.as_deref(), Some("v1"));
        let command = format!("nexus intent approve {}", ulid(1));
        assert!(card.content.contains(&command), "{}", card.content);
    }
}
