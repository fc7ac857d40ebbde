//! `nexus.svc.hook.*`: hooks that are made, tried, switched and deleted without a file.

use serde_json::{Value, json};
use shared::bus::RequestError;
use shared::testing::eventually;

use crate::world::{World, event};

const FIRES: &str = "export default () => ({ fire: true, routing: { session: 'file' } });\n";

fn code(refused: Result<Value, RequestError>) -> (u16, String) {
    let refused = refused.expect_err("refused");
    let RequestError::Service { code, text, .. } = refused else {
        panic!("{refused}")
    };
    (code, text)
}

/// Publishes events until the record of one says of the hooks what `holds` wants.
async fn until_records(world: &World, what: &str, holds: impl Fn(&[&str]) -> bool) {
    let mut number = 0;
    eventually(what, async || {
        number += 1;
        let event = event(&format!("{}-{number}", what.len()), number, "hello");
        world.publish(&event).await;
        let record = world.record(&event).await;
        let ids: Vec<&str> = record.hooks.iter().map(|hook| hook.hook_id.as_str()).collect();
        holds(&ids)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_made_hook_survives_every_replicas_directory_and_a_deleted_file_disables_only_its_own() {
    let mut world = World::new(&[("filed.ts", FIRES)]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    let made = json!({"name": "made", "description": "By an agent", "script": "return { fire: event.content === 'hello' };",
        "created_by": "agent:atlas"});
    let view = world.ask("create", made.clone()).await.expect("made");

    assert_eq!(
        (&view["status"], &view["origin"]["kind"]),
        (&json!("active"), &json!("tool"))
    );

    eventually("its file is written", async || {
        world.agent_dir().join("made.ts").exists()
    })
    .await;
    assert_eq!(world.ask("create", made).await.expect("asked again"), view);

    let pushed = json!({"id": "team/pushed", "source": FIRES});
    world.ask("push", pushed).await.expect("pushed");
    until_records(&world, "all three fire", |ids| ids == ["filed", "made", "team/pushed"]).await;

    // Another replica with the same directory, and a file that goes.
    world.start("c");
    world.wait_for_members(3).await;
    std::fs::remove_file(world.hooks_dir().join("filed.ts")).expect("removed");
    until_records(&world, "the others go on", |ids| ids == ["made", "team/pushed"]).await;

    assert!(world.hook("filed").await.is_some_and(|hook| !hook.enabled));

    let list = world
        .ask("list", json!({"created_by": "agent:atlas"}))
        .await
        .expect("listed");
    assert_eq!(list["hooks"].as_array().map(Vec::len), Some(1));

    let disabled = world.ask("list", json!({"status": "disabled"})).await.expect("listed");
    assert_eq!(disabled["hooks"][0]["id"], "filed");

    eventually("its invocations are known", async || {
        let details = world.ask("get", json!({"name": "made"})).await.expect("found");
        details["invocations"][0]["outcome"] == "fired" && details["hook"]["trigger_count"].as_u64() > Some(0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_are_switched_deleted_and_tried() {
    let world = World::with_one_replica(&[("filed.ts", FIRES)]).await;
    let one_shot = json!({"name": "once", "mode": "one-shot", "script": "return { fire: true };"});
    world.ask("create", one_shot.clone()).await.expect("made");
    until_records(&world, "it fires", |ids| ids.contains(&"once")).await;
    eventually("it has fired", async || {
        world.ask("get", json!({"name": "once"})).await.expect("found")["hook"]["status"] == "disabled"
    })
    .await;

    world.ask("enable", json!({"name": "once"})).await.expect("enabled");
    until_records(&world, "it fires once more", |ids| ids.contains(&"once")).await;

    let off = world
        .ask("disable", json!({"name": "filed", "reason": "noisy"}))
        .await
        .expect("disabled");
    assert_eq!(
        (&off["status"], &off["disabled_reason"]),
        (&json!("disabled"), &json!("noisy"))
    );

    until_records(&world, "it is quiet", |ids| !ids.contains(&"filed")).await;
    let filed = code(world.ask("delete", json!({"name": "filed"})).await);
    assert_eq!(filed.0, 409, "{filed:?}");

    world.ask("delete", json!({"name": "once"})).await.expect("deleted");
    eventually("its file goes", async || !world.agent_dir().join("once.ts").exists()).await;
    let list = world.ask("list", json!({})).await.expect("listed");

    assert_eq!(list["hooks"].as_array().map(Vec::len), Some(1), "{list}");

    let details = world
        .ask("get", json!({"name": "once"}))
        .await
        .expect("its history is kept");
    assert_eq!(details["hook"]["disabled_reason"], "deleted");

    world.ask("create", one_shot).await.expect("the name is free");

    for (question, wrong) in [
        (json!({"name": "No Name", "script": "return { fire: true };"}), "a-z"),
        (json!({"name": "broken", "script": "return {{{"}), "line "),
    ] {
        let refused = code(world.ask("create", question).await);
        assert!(refused.0 == 400 && refused.1.contains(wrong), "{refused:?}");
    }

    assert_eq!(code(world.ask("get", json!({"name": "nobody"})).await).0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_is_tried_upon_one_event_and_nothing_comes_of_it() {
    let world = World::with_one_replica(&[]).await;
    let stored = event("v1", 1, "a stored one");
    world.publish(&stored).await;
    world.record(&stored).await;
    let source = "export default ({ event, now }) => ({ fire: event.content !== 'no', context: { prompt: `${event.content} ${now.getTime()}` } });";
    let ask = async |event: Value| {
        world
            .ask("test", json!({"source": source, "event": event, "now": 7}))
            .await
    };

    let run = ask(json!(stored.id)).await.expect("tried");
    assert_eq!(
        (&run["fired"], &run["result"]["context"]["systemPrompt"]),
        (&json!(true), &json!("a stored one 7"))
    );

    let given = serde_json::to_value(event("v2", 1, "no")).expect("json");
    let run = ask(given).await.expect("tried");
    assert_eq!(
        (&run["fired"], run["result"].is_null(), run["error"].is_null()),
        (&json!(false), true, true)
    );

    let throws = json!({"source": "export default () => { throw new Error('boom'); };", "event": stored.id});
    let run = world.ask("test", throws).await.expect("tried");
    assert!(
        run["error"].as_str().is_some_and(|error| error.contains("boom")),
        "{run}"
    );
    assert_eq!(code(ask(json!("webchat:nobody/1")).await).0, 404);

    let registered = json!({"name": "made", "script": "return { fire: true, disableHook: true };"});
    world.ask("create", registered).await.expect("made");
    let run = world
        .ask("run", json!({"hook": "made", "event": stored.id}))
        .await
        .expect("run");

    assert_eq!(run["fired"], true);

    eventually("it is disabled as it asked", async || {
        world.ask("get", json!({"name": "made"})).await.expect("found")["hook"]["status"] == "disabled"
    })
    .await;
    assert!(world.dispatches().await.is_empty());
    assert!(world.record(&stored).await.hooks.is_empty());

    let found = world
        .bus
        .request_bytes(
            "$SRV.INFO.nexus-hook",
            &shared::wire::headers::Headers::new(),
            bytes::Bytes::new(),
            std::time::Duration::from_secs(30),
        )
        .await;

    let info = String::from_utf8(found.expect("it is discoverable").payload.to_vec()).expect("text");
    for name in [
        "create", "list", "get", "disable", "enable", "delete", "push", "run", "test",
    ] {
        assert!(info.contains(&format!("nexus.svc.hook.{name}")), "{name} in {info}");
    }
}
