//! Strangers share nothing: neither what they said, nor the wait for a human's word about one of them.

use serde_json::json;
use shared::testing::ModelServer;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::{PATIENCE, delivered, delivers, event, pending_approvals, send};

/// Answers every message of channel `e2e`, in the session of its conversation.
const ANSWER: &str = r#"/** @name answer */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "e2e" || e.direction !== "received") return { fire: false };
  return { fire: true, permissions: { level: "full" },
    deliveryContext: { channel: "nats", accountId: "e2e", peerId: e.peer.id, replyToId: e.id } };
};
"#;

/// Nobody of those who write is the owner.
const IDENTITIES: &str = "{owner: ann, persons: [{id: ann, addresses: {telegram: ['1']}}]}";
const PERSONAS: &str = "personas: {default: {runner: llm, requires_confirmation: [{tools: [list_hooks]}]}}";

#[tokio::test(flavor = "multi_thread")]
async fn one_visitor_learns_nothing_of_another_and_waits_for_nobody_elses_approval() {
    let model = ModelServer::ruled(|request, _| match request.last_user_text() {
        // Once it was refused, it does not insist: that would be another question to the owner.
        asked if asked.contains("hooks") && request.tool_results().is_empty() => {
            ScriptedAnswer::calls([ScriptedCall::new("c1", "list_hooks", &json!({}))])
        }
        asked => ScriptedAnswer::text(&format!("heard: {asked}")),
    })
    .await;

    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        personas: PERSONAS.to_owned(),
        identities: IDENTITIES.to_owned(),
        adapter: format!(
            "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n",
            model.base_url("openai")
        ),
        ..Setup::default()
    })
    .await;

    send(&world, &event("e2e:v1/1", "v1", "my number is 4711")).await;
    delivers(&world, "heard: my number is 4711").await;

    // The first visitor's next turn waits for the owner.
    send(&world, &event("e2e:v1/2", "v1", "list the hooks")).await;
    delivers(&world, "Approval needed").await;
    send(&world, &event("e2e:v2/1", "v2", "what did the others say?")).await;
    delivers(&world, "heard: what did the others say?").await;

    let theirs = model.requests();
    let theirs = theirs
        .iter()
        .filter(|request| request.last_user_text().contains("the others"));
    let theirs: Vec<String> = theirs.map(|request| format!("{request:?}")).collect();

    assert!(
        !theirs.is_empty() && theirs.iter().all(|text| !text.contains("4711")),
        "{theirs:?}"
    );

    // The same visitor is remembered once the owner has said no.
    let asked = eventually("the approval is listed", PATIENCE, async || {
        let first = pending_approvals(&world).await?.into_iter().next();
        first.map(|one| one.request.id).ok_or_else(|| "none".to_owned())
    })
    .await;
    let said = world.nexus(&["approval", "deny", &asked]).await;
    assert_eq!(said.code, Some(0), "{said:?}");

    send(&world, &event("e2e:v1/3", "v1", "and now?")).await;
    delivers(&world, "heard: and now?").await;
    let mine = model
        .requests()
        .into_iter()
        .filter(|request| request.last_user_text() == "and now?");

    let mine: Vec<String> = mine.map(|request| format!("{request:?}")).collect();
    assert!(
        mine.iter().any(|text| text.contains("4711")),
        "{mine:?} {:?}",
        delivered(&world).await
    );

    world.stack.stop().await;
}
