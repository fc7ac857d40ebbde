//! Intents that run a hook: its own timer event, evaluated by hook-svc as any event, ends the firing by its record.

use serde_json::json;
use shared::bus::ServiceSpec;
use shared::model::event::Event;
use shared::model::hook_api::GetHook;
use shared::model::intent::{IntentCode, IntentStatus};
use shared::model::invocation::{HookInvocation, HookOutcome};
use shared::testing::eventually_some;
use shared::wire::topology::streams::EVENTS;

use crate::world::{World, ulid};

fn invocation(hook: &str, outcome: HookOutcome) -> HookInvocation {
    HookInvocation {
        hook_id: hook.to_owned(),
        latency_us: 1,
        outcome,
        llm_calls: 0,
        llm_tokens_in: 0,
        llm_tokens_out: 0,
        llm_cost_usd: 0.0,
        search_calls: 0,
    }
}

async fn fired(world: &World, number: u128) -> Event {
    eventually_some("its event", || async {
        let events = world.events().await;
        events
            .into_iter()
            .find(|event| event.metadata["intent"] == json!(ulid(number).to_string()))
    })
    .await
}

/// Two replicas fire it, again and again: one event names the hook, and its record, not an answer, ends the intent.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_is_run_by_one_event_and_its_record_ends_the_intent() {
    let world = World::start(2).await;
    let ends = [
        (
            HookOutcome::Fired {
                dispatch: ulid(7),
                result: Box::default(),
                target: None,
            },
            IntentStatus::Completed,
            IntentCode::Done,
        ),
        (
            HookOutcome::Failed {
                error: "no".to_owned(),
                stack: None,
            },
            IntentStatus::Failed,
            IntentCode::TurnFailed,
        ),
    ];

    for (number, (outcome, status, code)) in (1..).zip(ends) {
        let wish = json!({ "kind": "run_hook", "parameters": { "hook": "nightly", "input": number } });
        let due = world.propose(number, wish).await.due.expect("it is admitted");
        world.clock.set(due);
        let fire = async |replica: usize| {
            world.desks[replica]
                .clerk
                .handle_due("default", ulid(number), due, None)
                .await
        };

        let record = async {
            let event = fired(&world, number).await;
            assert_eq!(
                event.metadata["schedule"]["target"],
                json!({ "kind": "hook", "id": "nightly" })
            );
            assert_eq!(event.metadata["parameters"]["input"], json!(number));

            world.evaluated(&event, invocation("nightly", outcome)).await;
        };

        let (one, other, ()) = tokio::join!(fire(0), fire(1), record);
        one.and(other).expect("fired");
        assert_eq!(world.status(ulid(number)).await, status);
        assert_eq!(world.history(ulid(number)).await.last().expect("one").code, code);
    }

    assert_eq!(world.bus.stream_state(EVENTS).await.expect("EVENTS").messages, 2);
    assert!(
        world.dispatches().await.is_empty(),
        "what the hook wants done is hook-svc's to publish"
    );
}

/// A record that does not name the hook: whether it passed or never ran is what hook-svc says of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_switched_off_has_not_passed() {
    let world = World::start(1).await;
    let clerk = &world.desks[0].clerk;
    let fire = async |number| {
        let wish = json!({ "kind": "run_hook", "parameters": { "hook": "nightly" } });
        let due = world.propose(number, wish).await.due.expect("it is admitted");
        world.clock.set(due);

        let record = async {
            let event = fired(&world, number).await;
            let other = HookOutcome::Suppressed {
                reason: "cooldown".to_owned(),
            };
            world.evaluated(&event, invocation("another", other)).await;
        };

        let (fired, ()) = tokio::join!(clerk.handle_due("default", ulid(number), due, None), record);
        fired.expect("fired");

        due
    };

    let due = fire(1).await;
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Running, "nobody can tell");

    let (status, stands) = tokio::sync::watch::channel("disabled");
    let spec = ServiceSpec::new("hook", "a hook").endpoint("get", move |_: GetHook| {
        let stands = *stands.borrow();
        async move {
            let mut hook = json!({
                "id": "nightly", "name": "nightly", "status": stands, "mode": "persistent", "priority": 50,
                "origin": { "kind": "pushed" }, "created_by": "operator", "created_at": 0, "updated_at": 0, "trigger_count": 0
            });
            hook["status"] = json!(stands);
            Ok(json!({ "hook": hook, "source": "", "invocations": [] }))
        }
    });

    let _served = world.bus.serve(spec).await.expect("served");
    world.bus.flush().await.expect("it is known");
    assert!(clerk.look_for_end("default", ulid(1), due).await.expect("looked"));
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Failed);
    assert_eq!(
        world.history(ulid(1)).await.last().expect("one").why,
        "the hook `nightly` is disabled"
    );

    status.send("active").expect("heard");
    let due = fire(2).await;
    eventually_some("its end", || async {
        let looked = clerk.look_for_end("default", ulid(2), due).await.expect("looked");
        looked.then_some(())
    })
    .await;

    assert_eq!(world.status(ulid(2)).await, IntentStatus::Completed);
}

/// Nobody evaluates for a while: the firing stays under way, and the next look ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_evaluated_late_ends_it_late() {
    let world = World::start(1).await;
    let clerk = &world.desks[0].clerk;
    let wish = json!({ "kind": "run_hook", "parameters": { "hook": "nightly" } });
    let due = world.propose(1, wish).await.due.expect("it is admitted");
    world.clock.set(due);
    clerk.handle_due("default", ulid(1), due, None).await.expect("fired");

    assert!(!clerk.look_for_end("default", ulid(1), due).await.expect("looked"));
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Running);

    let event = fired(&world, 1).await;
    let none = HookOutcome::Skipped {
        reason: "breaker_open".to_owned(),
    };
    world.evaluated(&event, invocation("nightly", none)).await;

    assert!(clerk.look_for_end("default", ulid(1), due).await.expect("looked"));
    assert_eq!(world.status(ulid(1)).await, IntentStatus::Failed);
}
