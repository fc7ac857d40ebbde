//! Script hooks inside a turn: what brokers ask of `nexus.svc.hook.run` upon events that no stream has.

use serde_json::{Value, json};
use shared::bus::RequestError;

use crate::world::World;

const POLICY: &str = "/** @match channel=turn */
export default function (ctx: HookContext): HookResult {
  const { point, tool_name, tool_args } = ctx.event.metadata;
  if (tool_args.query === 'retire') return { fire: false, disableHook: true };
  if (point !== 'PreToolUse' || !/^drop /i.test(tool_args.query)) return { fire: false };
  return { fire: true, context: { extracted: { allow: false, error: `${tool_name} drops nothing here` } } };
}
";

/// What a broker shows it.
fn asked(query: &str) -> Value {
    json!({
        "id": "turn:01M80A4BYPJANS8A4KMNFK7P5E/PreToolUse/1/1-1", "channel": "turn", "timestamp": 1_795_307_558_806_i64,
        "received_at": 1_795_307_558_806_i64, "peer": {"id": "default/main", "kind": "dm"}, "from": {"id": "v1"},
        "direction": "received", "content": "sql_query", "content_types": ["text"],
        "metadata": {"point": "PreToolUse", "tool_name": "sql_query", "tool_args": {"query": query}, "agent_id": "default"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_refuses_a_call_in_the_sandbox_and_lets_another_be() {
    let mut world = World::new(&[("turn/policy.ts", POLICY)]).await;
    world.start("a");
    world.wait_for_members(1).await;
    let run = async |query: &str| {
        let asked = json!({"hook": "turn/policy", "event": asked(query), "now": 1_795_307_558_806_i64});
        world.ask("run", asked).await.expect("it runs")
    };

    let refused = run("DROP table users").await;
    assert_eq!(refused["error"], Value::Null, "{refused}");
    assert_eq!(refused["fired"], json!(true), "{refused}");

    let said = &refused["result"]["context"]["extracted"];
    assert_eq!(*said, json!({"allow": false, "error": "sql_query drops nothing here"}));
    assert_eq!(run("select 1").await["fired"], json!(false));

    // Once it has asked to be switched off it is asked nothing more: whoever asks is told so.
    assert_eq!(run("retire").await["fired"], json!(false));

    let asked = json!({"hook": "turn/policy", "event": asked("select 1"), "now": 1_795_307_558_806_i64});
    let refused = world.ask("run", asked).await;
    assert!(
        matches!(refused, Err(RequestError::Service { code: 409, .. })),
        "{refused:?}"
    );
}
