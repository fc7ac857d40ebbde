//! Hook files: synced, edited, broken, deleted; and hooks that fire once.

use serde_json::json;
use shared::model::hook::{FiredOnce, HookState, HookStatus};
use shared::testing::eventually;
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_STATE;

use crate::world::{World, event};

fn to(session: &str) -> String {
    format!("export default () => ({{ fire: true, routing: {{ session: '{session}' }} }});\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_file_runs_within_a_moment_and_a_broken_one_leaves_the_last_good() {
    let world = World::with_one_replica(&[("work/route.ts", &to("one"))]).await;
    let mut number = 0;
    let mut sessions = async |expected: &str| {
        eventually(&format!("dispatches go to {expected}"), async || {
            number += 1;
            let event = event("v1", number, "hello");
            world.publish(&event).await;
            world.record(&event).await;
            let dispatches = world.dispatches().await;

            dispatches
                .iter()
                .find(|d| d.event_id == event.id)
                .is_some_and(|d| d.target.session == expected)
        })
        .await;
    };

    sessions("one").await;
    world.write_hook("work/route.ts", &to("two"));
    sessions("two").await;
    world.write_hook("work/route.ts", "export default () => {{{");

    eventually("the error is noted", async || {
        world
            .hook("work/route")
            .await
            .is_some_and(|hook| hook.parse_error.is_some())
    })
    .await;

    sessions("two").await;
    std::fs::remove_file(world.hooks_dir().join("work/route.ts")).expect("removed");
    eventually("the hook is disabled", async || {
        world.hook("work/route").await.is_some_and(|hook| !hook.enabled)
    })
    .await;

    eventually("it fires no more", async || {
        number += 1;
        let event = event("v1", number, "hello");
        world.publish(&event).await;
        world.record(&event).await.hooks.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_may_retire_without_firing() {
    let retiring = "export default ({ event }) => ({ fire: false, disableHook: event.content === 'stop' });\n";
    let world = World::with_one_replica(&[("retiring.ts", retiring)]).await;
    let event = event("v1", 1, "stop");
    world.publish(&event).await;

    assert_eq!(world.record(&event).await.passed, 1);

    eventually("it is disabled", async || {
        world
            .hook_state("retiring")
            .await
            .is_some_and(|state| state.status == HookStatus::Disabled)
    })
    .await;

    assert!(world.dispatches().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_hook_fires_once_on_two_replicas() {
    let once = "/** @mode one-shot */\nexport default () => ({ fire: true });\n";
    let mut world = World::new(&[("once.ts", once)]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    let events: Vec<_> = (0..60).map(|number| event(&format!("v{number}"), 1, "now")).collect();
    futures_util::future::join_all(events.iter().map(|event| world.publish(event))).await;
    world.wait_for_records(60).await;

    let dispatches = world.dispatches().await;
    let [dispatch] = dispatches.as_slice() else {
        panic!("{} dispatches", dispatches.len())
    };

    let state = world.hook_state("once").await.expect("a state");
    assert_eq!(state.status, HookStatus::Disabled);
    assert_eq!(
        state.fired_once.map(|fired| fired.event_id),
        Some(dispatch.event_id.clone())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_a_hook_are_written_down() {
    let world = World::with_one_replica(&[("route.ts", &to("one"))]).await;
    for number in 0..5 {
        world.publish(&event("v1", number, "hello")).await;
    }

    eventually("the counter stands at five", async || {
        world
            .hook_state("route")
            .await
            .is_some_and(|state| state.trigger_count == 5 && state.last_triggered.is_some())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_winner_of_a_one_shot_hook_publishes_what_was_stored_when_it_comes_again() {
    let once = "/** @mode one-shot */\nexport default () => ({ fire: true, routing: { session: 'now' } });\n";
    let mut world = World::new(&[("once.ts", once)]).await;
    let (winner, other) = (event("v1", 1, "hello"), event("v2", 1, "hello"));
    let result = json!({"fire": true, "routing": {"session": "then"}});

    let state = HookState {
        status: HookStatus::Disabled,
        fired_once: Some(FiredOnce {
            event_id: winner.id.clone(),
            result: serde_json::from_value(result).expect("a result"),
        }),
        ..HookState::default()
    };

    world
        .bus
        .kv::<HookState>(HOOK_STATE)
        .create(&token("once"), &state)
        .await
        .expect("stored");

    world.publish(&winner).await;
    world.publish(&other).await;
    world.start("a");
    world.wait_for_records(2).await;
    let dispatches = world.dispatches().await;
    let [dispatch] = dispatches.as_slice() else {
        panic!("{dispatches:?}")
    };

    assert_eq!(
        (&dispatch.event_id, dispatch.target.session.as_str()),
        (&winner.id, "then")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hooks_directory_that_is_not_there_is_no_empty_one() {
    let mut world = World::with_one_replica(&[("stays.ts", "export default () => ({ fire: false });")]).await;
    eventually("it is registered", async || world.hook("stays").await.is_some()).await;
    world.replica("a").kill();

    std::fs::rename(world.hooks_dir(), world.hooks_dir().with_extension("away")).expect("renamed");
    world.start("b");
    let mut ended = None;
    eventually("it ends", async || {
        ended = world.replica("b").ended();
        ended.is_some()
    })
    .await;

    assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");

    let hook = world.hook("stays").await.expect("registered");
    assert!(hook.enabled, "{hook:?}");
}
