//! A call that wants a human's yes, asked for from this machine's own command line; and what `nexus doctor` says of a level
//! under which nobody has a tool.

use serde_json::json;
use shared::model::reply::Reply;
use shared::testing::ModelServer;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{Setup, World, shipped_hook};

use crate::story::{PATIENCE, delivers, pending_approvals};

/// The owner writes by the command line.
const IDENTITIES: &str = "owner: ann\npersons: [{id: ann, addresses: {cli: [me]}}]\n";
/// Of a `restricted` turn nobody has a tool: none is called so.
const PERSONAS: &str = "
personas:
  default: {runner: llm, requires_confirmation: [{tools: [list_hooks], ask: {policy: payments}}]}
permission_levels:
  minimal: {allow: ['list_*']}
  restricted: {allow: ['no_such_*']}
";

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_asked_by_the_command_line_makes_no_dead_letter() {
    let model = ModelServer::ruled(|request, _| match request.tool_results().last() {
        None => ScriptedAnswer::calls([ScriptedCall::new("c1", "list_hooks", &json!({"status": "active"}))]),
        Some(_) => ScriptedAnswer::text("paid from the shell"),
    })
    .await;
    let sections = format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n",
        model.base_url("openai")
    );

    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        personas: PERSONAS.to_owned(),
        identities: IDENTITIES.to_owned(),
        adapter: sections,
        ..Setup::default()
    })
    .await;

    world.words(&["send", "pay it"]).await;
    let pending = eventually("the approval is asked for", PATIENCE, async || {
        let pending = pending_approvals(&world).await?;
        pending.first().cloned().ok_or_else(|| world.logs())
    })
    .await;

    world
        .words(&["approval", "approve", &pending.request.id.to_string()])
        .await;
    delivers(&world, "paid from the shell").await;

    // The card and the answer went out on channel `cli`, and nothing was given up.
    let replies: Vec<(u64, Reply)> = read_all(&world.bus, streams::DELIVERIES).await;
    assert!(replies.is_empty(), "everything is settled: {replies:?}");
    let dead = world.json(&["dlq", "list"]).await;
    assert_eq!(dead.as_array().map(Vec::len), Some(0), "{dead}");

    doctor(&world).await;
    world.stack.stop().await;
}

/// What `nexus doctor` says of the level under which nobody has a tool.
async fn doctor(world: &World) {
    let said = world.nexus(&["doctor"]).await;
    let line = said
        .out
        .lines()
        .find(|line| line.contains("broker-svc") && line.contains("tools: "));
    let line = line.unwrap_or_else(|| panic!("{}", said.out));
    assert!(line.starts_with("warn") && line.contains("restricted"), "{line}");
    assert!(!line.contains("minimal"), "{line}");
}
