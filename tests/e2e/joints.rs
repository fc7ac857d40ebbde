//! What services ask of each other, all of them real: a script in hook-svc's sandbox decides over a call within a turn, a
//! hook's own schedule wakes it, an intent runs a hook.

use std::time::Duration;

use serde_json::{Value, json};
use shared::testing::ModelServer;
use shared::testing::model_server::{RecordedRequest, ScriptedAnswer, ScriptedCall};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::approval::ANSWER;
use crate::story::{PATIENCE, delivered, delivers, event, send};

/// A gate: the list of what is switched off is not for agents.
const POLICY: &str = "/** @match channel=turn */
export default function (ctx: HookContext): HookResult {
  const { point, tool_name, tool_args } = ctx.event.metadata;
  if (point !== 'PreToolUse' || tool_args.status !== 'disabled') return { fire: false };
  return { fire: true, context: { extracted: { allow: false, error: `${tool_name}: not what is switched off` } } };
}
";
/// Wakes once a year by itself, and for whoever names it.
const REPORT: &str = "/**
 * @schedule cron 0 9 1 1 *
 * @timezone Europe/Berlin
 */
export default function (ctx: HookContext): HookResult {
  const { schedule, parameters } = ctx.event.metadata;
  if (parameters?.input.month === 'none') return { fire: false };
  const what = parameters ? `of ${parameters.input.month}` : `that ${schedule.id} asks for`;
  return {
    fire: true, routing: { session: 'reports' }, context: { systemPrompt: `Write the report ${what}.` },
    deliveryContext: { channel: 'nats', accountId: 'e2e', peerId: 'owner' },
  };
}
";
const PERSONAS: &str = "personas:
  default:
    runner: llm
    hooks: [{name: policy, hook: PreToolUse, script: turn/policy, tools: ['list_*']}]
";
/// The schedule of [`REPORT`].
const YEARLY: &str = "hook:report:0";
const QUESTION: &str = "which hooks are there?";
/// The first look at how a hook's run ended may miss it; the next is half a minute later.
const LOOKED_AT: Duration = Duration::from_secs(120);

/// A model that wants to see what is switched off, then what is not; or writes the report that it is to write.
fn says(request: &RecordedRequest) -> ScriptedAnswer {
    let told = request.tool_results();
    let list =
        |status: &str| ScriptedAnswer::calls([ScriptedCall::new(status, "list_hooks", &json!({ "status": status }))]);

    if request.last_user_text() != QUESTION {
        let body = request.body.to_string();
        let wanted = body
            .split("Write the report ")
            .nth(1)
            .and_then(|rest| rest.split('.').next());
        return ScriptedAnswer::text(&format!("The report {}", wanted.unwrap_or("that nobody wants")));
    }

    match told.as_slice() {
        [] => list("disabled"),
        [_] => list("active"),
        [one, other, ..] => ScriptedAnswer::text(&format!("I was told: {one} / {}", other.replace('"', "'"))),
    }
}

struct Story {
    world: World,
    model: ModelServer,
}

impl Story {
    async fn begin() -> Self {
        let model = ModelServer::ruled(|request, _| says(request)).await;
        let world = World::start(Setup {
            hooks: vec![
                ("answer.ts", ANSWER.to_owned()),
                ("turn/policy.ts", POLICY.to_owned()),
                ("report.ts", REPORT.to_owned()),
            ],
            personas: PERSONAS.to_owned(),
            adapter: format!(
                "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n",
                model.base_url("openai")
            ),
            ..Setup::default()
        })
        .await;

        Self { world, model }
    }

    /// An intent runs the report hook with `month`; how that ended: status and why.
    async fn runs(&self, month: &str) -> (String, String) {
        let wish = json!({
            "kind": "run_hook", "parameters": { "hook": "report", "input": { "month": month } },
            "schedule": { "type": "after", "seconds": 1 }
        });
        let proposed = self.world.json(&["intent", "propose", &wish.to_string()]).await;
        assert_eq!(proposed["status"], "pending", "{proposed}");

        let id = proposed["id"].as_str().expect("an id");
        eventually("the intent ends", LOOKED_AT, async || {
            let shown = self.world.json(&["intent", "show", id]).await;
            let history = shown["history"].as_array().cloned().unwrap_or_default();

            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            match history.last().map(|last| (text(&last["to"]), text(&last["why"]))) {
                Some((to, why)) if to == "completed" || to == "failed" => Ok((to, why)),
                Some(_) | None => Err(format!("{shown}\n{}", self.world.logs())),
            }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_gate_turns_schedules_wake_hooks_and_intents_run_them() {
    let story = Story::begin().await;
    a_script_decides_over_calls(&story).await;
    a_schedule_wakes_its_hook(&story).await;
    intents_run_it(&story).await;
    story.world.stack.stop().await;
}

/// The model reads why the one call is refused, and what the other brought; a gate that is switched off lets nothing by.
async fn a_script_decides_over_calls(story: &Story) {
    let refused = "error: list_hooks: not what is switched off";
    send(&story.world, &event("e2e:ann/1", "ann", QUESTION)).await;
    let said = delivers(&story.world, "I was told").await;
    let calls = story.model.requests();

    assert_eq!(calls.len(), 3, "two calls and the answer: {said}");
    assert_eq!(calls[1].tool_results(), [refused]);

    let told = calls[2].tool_results();
    assert_eq!((told.len(), told[0].as_str()), (2, refused));
    assert!(told[1].contains("turn/policy"), "hook-svc lists the hooks: {told:?}");

    let off = story.world.words(&["hook", "disable", "turn/policy"]).await;
    assert!(off.contains("turn/policy is disabled"), "{off}");

    send(&story.world, &event("e2e:ben/1", "ben", QUESTION)).await;
    let closed = "error: hook `policy` could not decide";
    delivers(&story.world, closed).await;
    let told = story.model.requests()[5].tool_results();

    assert!(
        told.len() == 2 && told.iter().all(|told| told.starts_with(closed)),
        "{told:?}"
    );
}

/// The entry that hook-svc writes of `@schedule` is fired by the scheduler, and what comes of it is a turn.
async fn a_schedule_wakes_its_hook(story: &Story) {
    eventually("the hook's schedule is written", PATIENCE, async || {
        story.world.tried(&["schedule", "show", YEARLY]).await
    })
    .await;
    let listed = story.world.words(&["schedule", "list", "hook:"]).await;
    assert!(listed.contains(YEARLY), "{listed}");

    let next = story.world.words(&["schedule", "next", YEARLY, "--limit", "1"]).await;
    assert!(next.contains("-01-01") && next.contains("09:00:00"), "{next}");
    assert!(
        delivered(&story.world)
            .await
            .iter()
            .all(|said| !said.contains("The report"))
    );

    let fired = story.world.json(&["schedule", "fire", YEARLY]).await;
    let event = fired[0]["event_id"].as_str().expect("an event");
    assert!(event.starts_with("timer:hook:report:0:"), "{fired}");

    let said = delivers(&story.world, "The report").await;
    assert_eq!(said, "The report that hook:report:0 asks for");

    let asked = story.model.requests().pop().expect("a request");
    assert_eq!(
        asked.last_user_text(),
        "[no text]",
        "a timer says nothing, and no provider is sent nothing"
    );

    let traced = story.world.words(&["trace", event, "--wait", "60"]).await;
    assert!(
        traced.ends_with("complete\n") && !traced.contains("not complete"),
        "{traced}"
    );
}

/// What the hook wants done is done, and the intent ends as the hook did.
async fn intents_run_it(story: &Story) {
    let (to, why) = story.runs("May").await;
    assert!(to == "completed" && why.starts_with("fired: "), "{to}: {why}");

    delivers(&story.world, "The report of May").await;
    let (to, why) = story.runs("none").await;
    assert_eq!((to.as_str(), why.as_str()), ("completed", "passed"));

    story
        .world
        .words(&["hook", "disable", "report", "--reason", "no more"])
        .await;
    eventually("its schedule is gone with it", PATIENCE, async || {
        match story.world.tried(&["schedule", "show", YEARLY]).await {
            Ok(shown) => Err(shown),
            Err(why) if why.contains(&format!("no schedule `{YEARLY}`")) => Ok(()),
            Err(why) => Err(why),
        }
    })
    .await;

    let (to, why) = story.runs("June").await;
    assert!(to == "failed" && why.contains("is disabled"), "{to}: {why}");

    let said = delivered(&story.world).await;
    let reports = said.iter().filter(|said| said.contains("The report")).count();
    assert_eq!(reports, 2, "one each: {said:?}");
}
