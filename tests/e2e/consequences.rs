//! What an event led to, over real services: the trace is complete only once the last consequence has ended.

use serde_json::json;
use shared::model::event::EventId;
use shared::projection::api::{EventTrace, TraceStage};
use shared::testing::ModelServer;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use tests::eventually::eventually;
use tests::world::{Setup, World, shipped_hook};

use crate::approval::ANSWER;
use crate::story::{PATIENCE, event, pending_approvals, send};

/// `shop` may list hooks once the owner agrees; both agents are the same model.
const PERSONAS: &str = "personas: {default: {runner: llm}, \
                        shop: {runner: llm, requires_confirmation: [{tools: [list_hooks], ask: {policy: looks}}]}}";

/// Asks the other agent to look, which needs a human's word.
async fn delegates() -> ModelServer {
    ModelServer::ruled(|request, _| {
        let asked_by_a_person = request.last_user_text().contains("delegate");
        match (request.tool_results().last(), asked_by_a_person) {
            (None, true) => {
                let message = json!({"to": "shop", "content": "look at the hooks"});
                ScriptedAnswer::calls([ScriptedCall::new("c1", "send_message_to_agent", &message)])
            }
            (None, false) => {
                ScriptedAnswer::calls([ScriptedCall::new("c1", "list_hooks", &json!({"status": "active"}))])
            }
            (Some(_), _) => ScriptedAnswer::text("done"),
        }
    })
    .await
}

async fn trace(world: &World, id: &str) -> EventTrace {
    let id = EventId::parse(id).expect("an id");
    cli::trace::ask_trace(&world.bus, &id).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_waits_for_the_approval_that_another_agent_s_turn_waits_for() {
    let model = delegates().await;
    let sections = format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n",
        model.base_url("openai")
    );

    let agents = shipped_hook("agent-messages.ts").replace("level: \"restricted\"", "level: \"full\"");
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned()), ("agent-messages.ts", agents)],
        personas: PERSONAS.to_owned(),
        adapter: sections,
        ..Setup::default()
    })
    .await;

    send(&world, &event("e2e:d/1", "d", "delegate")).await;

    // The first agent is done and its answer is delivered; the other one waits for a human.
    let pending = eventually("the trace has the question", PATIENCE, async || {
        let told = trace(&world, "e2e:d/1").await;
        let asks = told.steps.iter().any(|step| step.detail == "list_hooks: pending");

        let delivered = told
            .steps
            .iter()
            .any(|step| step.stage == TraceStage::Sent && step.depth == 1);
        match asks && delivered {
            true => Ok(told),
            false => Err(format!("{told:#?}\n{}", world.logs())),
        }
    })
    .await;

    assert!(!pending.complete, "{pending:#?}");

    let listed = pending_approvals(&world).await.expect("the approvals");
    let id = listed.first().expect("a question").request.id.clone();
    let said = world.nexus(&["approval", "approve", &id]).await;

    assert_eq!(said.code, Some(0), "{said:?}");

    let whole = eventually("the trace is complete", PATIENCE, async || {
        let told = trace(&world, "e2e:d/1").await;
        match told.complete {
            true => Ok(told),
            false => Err(format!("{told:#?}\n{}", world.logs())),
        }
    })
    .await;

    let turns = whole.steps.iter().filter(|step| step.stage == TraceStage::Turn).count();
    let tools: Vec<&str> = whole
        .steps
        .iter()
        .filter(|step| step.stage == TraceStage::Tool)
        .map(|step| step.detail.as_str())
        .collect();

    assert_eq!(
        (turns, tools),
        (2, vec!["send_message_to_agent: ok", "list_hooks: ok"]),
        "{whole:#?}"
    );
}
