//! The registry's buckets are made anew under a running replica: the directory's hooks never stop.

use shared::model::hook::HookRecord;
use shared::model::invocation::HookOutcome;
use shared::testing::eventually;
use shared::wire::topology::{buckets, topology};

use crate::world::{World, event, of};

fn fires(version: &str) -> String {
    format!(
        "export default () => ({{ fire: true, routing: {{ session: 's' }}, context: {{ prompt: '{version}' }} }});\n"
    )
}

/// What the hook said of the event that `number` counts.
async fn said(world: &World, number: u32) -> String {
    let event = event("p", number, "hello");
    world.publish(&event).await;
    let record = world.record(&event).await;
    let HookOutcome::Fired { result, .. } = &of(&record, "v").outcome else {
        panic!("{record:?}");
    };

    let prompt = result
        .context
        .as_ref()
        .and_then(|context| context.system_prompt.clone());

    prompt.expect("it says which version it is")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_made_anew_gets_the_directory_again_and_no_event_goes_by_unseen() {
    let world = World::with_one_replica(&[("v.ts", &fires("1"))]).await;
    let hooks = world.bus.kv::<HookRecord>(buckets::HOOKS);

    // So that its revisions are beyond those that the other bucket begins with.
    for version in ["2", "3", "4"] {
        world.write_hook("v.ts", &fires(version));
        eventually("the file is in the registry", async || {
            world.hook("v").await.is_some_and(|hook| hook.source == fires(version))
        })
        .await;
    }

    let mut number = 0;
    eventually("the last one is in force", async || {
        number += 1;
        said(&world, number).await == "4"
    })
    .await;

    for stream in ["KV_hooks", "KV_hook_state"] {
        assert!(world.bus.delete_stream(stream).await.expect("deleted"));
    }

    assert_eq!(
        said(&world, number + 1).await,
        "4",
        "what was in force is while nobody knows"
    );

    world
        .bus
        .ensure_topology(&topology(1), false)
        .await
        .expect("made again");
    number += 1;
    eventually("the directory is in the registry again", async || {
        number += 1;
        assert_eq!(said(&world, number).await, "4");
        hooks.get("v").await.expect("readable").is_some()
    })
    .await;

    world.write_hook("v.ts", &fires("5"));
    eventually("a change is heard of", async || {
        number += 1;
        said(&world, number).await == "5"
    })
    .await;
}
