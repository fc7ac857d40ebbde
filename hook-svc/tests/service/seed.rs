//! What seed 003 shows as hooks, word for word, in force, confined as they are shipped, and fed with events.

use serde_json::json;
use shared::model::hook::HookStatus;
use shared::model::invocation::HookOutcome;
use shared::testing::eventually;
use shared::testing::model_server::{ModelServer, ScriptedAnswer};

use crate::world::{World, event, of};

/// §9.3, as it stands there.
const MY_HOOK: &str = r"// ~/nexus/state/hooks/my-hook.ts

/**
 * @name My Custom Hook
 * @description Does something cool when X happens
 * @mode persistent   // or 'one-shot'
 */

export default async function(ctx: HookContext): Promise<HookResult> {
  const { event, mnemonic, llm, now, hook } = ctx;
  
  // Your logic here
  
  return { fire: false };
}
";

/// §8.6: both calls as they stand there, in a function that looks at what they say.
const ASKS: &str = r#"/**
 * @name Two factors
 */
export default async function(ctx: HookContext): Promise<HookResult> {
  const { event, llm } = ctx;
  if (!event.content.includes("code")) return { fire: false };
  const first = await (async () => {
// In hook scripts:
const response = await llm("Is this a 2FA request? Answer yes or no.");
    return response;
  })();
  const second = await (async () => {
// With options:
const response = await llm("Extract the service name. Return JSON.", { 
  json: true 
});
    return response;
  })();
  return { fire: first.toLowerCase().startsWith("yes"), context: { extracted: JSON.parse(second) } };
}
"#;

/// §9.5, with the evaluation logic that it leaves out.
const ONE_SHOT: &str = r#"/**
 * @mode one-shot
 */
export default async function(ctx: HookContext): Promise<HookResult> {
  const shouldFire = ctx.event.content === "call";
  
  if (shouldFire) {
    return {
      fire: true,
      routing: { agent_id: 'phone-caller' },
      context: { prompt: 'Call Tyler!' },
      disable_hook: true  // <-- Self-disable after firing
    };
  }
  
  // Check if we've passed our deadline without firing
  const deadline = new Date("2026-01-28T03:00:00-06:00");
  if (ctx.now > deadline) {
    // Past deadline and didn't need to fire — clean up
    return { fire: false, disable_hook: true };
  }
  
  return { fire: false };
}
"#;

/// Opens the read model as a script does that knows nothing of who writes it.
const OPENS: &str = r#"import Database from "better-sqlite3";

export default async function(ctx: HookContext): Promise<HookResult> {
  const db = new Database(ctx.dbPath);
  const row = db.prepare("SELECT content FROM events WHERE id = ?").get(ctx.event.id);
  let refused = "";
  try {
    db.prepare("DELETE FROM events").run();
  } catch (error) {
    refused = error.message;
  }
  db.close();
  return { fire: row.content === ctx.event.content && refused !== "" };
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn hooks_of_the_seed_run_as_they_are_written_there() {
    let model = ModelServer::ruled(|asked, _| {
        let json = asked.last_user_text().contains("service name");
        ScriptedAnswer::text(if json { r#"{"service": "Chase"}"# } else { "Yes." })
    })
    .await;
    let files = [
        ("my-hook.ts", MY_HOOK),
        ("asks.ts", ASKS),
        ("opens.ts", OPENS),
        ("goes.ts", ONE_SHOT),
        ("calls.ts", ONE_SHOT),
    ];

    let mut world = World::new(&files).await;
    if World::is_confined_whole().await {
        world.sandbox = "enforce";
    }

    world.sections = format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"m\"\nprices.m = {{ input = 0, output = 0 }}\nbase_url = \"{}\"\n",
        model.base_url("openai")
    );
    world.start("a");
    world.wait_for_members(1).await;

    // Both one-shots see it; each calls, and is gone.
    let call = event("v1", 1, "call");
    world.publish(&call).await;

    let record = world.record(&call).await;
    for hook in ["goes", "calls", "opens"] {
        let outcome = &of(&record, hook).outcome;
        assert!(matches!(outcome, HookOutcome::Fired { .. }), "{hook}: {outcome:?}");
    }

    assert_eq!((record.hooks.len(), record.passed), (3, 2), "{record:?}");

    let calls: Vec<_> = world.dispatches().await;
    let caller = calls
        .iter()
        .find(|dispatch| dispatch.hook_id == "calls")
        .expect("it fired");

    assert_eq!(
        (caller.target.persona.as_str(), caller.context.system_prompt.as_deref()),
        ("phone-caller", Some("Call Tyler!"))
    );

    eventually("the one-shots are disabled", async || {
        let status = async |id: &str| world.hook_state(id).await.map(|state| state.status);
        (status("goes").await, status("calls").await) == (Some(HookStatus::Disabled), Some(HookStatus::Disabled))
    })
    .await;

    let code = event("v1", 2, "what was the code?");
    world.publish(&code).await;
    let record = world.record(&code).await;

    assert!(
        matches!(of(&record, "asks").outcome, HookOutcome::Fired { .. }),
        "{record:?}"
    );

    let dispatches = world.dispatches().await;
    let asked = dispatches
        .iter()
        .find(|dispatch| dispatch.hook_id == "asks")
        .expect("it fired");

    let extracted = asked.context.extracted.clone().expect("extracted");
    assert_eq!(serde_json::Value::from(extracted), json!({"service": "Chase"}));
    assert_eq!(model.calls(), 2);

    let my_hook = world.hook("my-hook").await.expect("synced");
    assert_eq!(
        (my_hook.metadata.name.as_str(), my_hook.parse_error),
        ("My Custom Hook", None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_of_the_seed_that_is_past_its_deadline_goes_without_a_fire() {
    let world = World::with_one_replica(&[("goes.ts", ONE_SHOT)]).await;
    let other = event("v1", 1, "something else");
    world.publish(&other).await;
    world.record(&other).await;
    eventually("it has disabled itself", async || {
        let state = world.hook_state("goes").await;
        state.is_some_and(|state| state.status == HookStatus::Disabled && state.fired_once.is_none())
    })
    .await;

    assert!(world.dispatches().await.is_empty());
}
