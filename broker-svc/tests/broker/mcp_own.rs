//! An MCP server of the test's own: one that is away when a human approves a call of its, and one whose tools change.

use std::path::Path;

use serde_json::json;
use shared::llm::ModelProvider;
use shared::model::approval::ApprovalStatus;
use shared::model::ledger::LedgerEntry;
use shared::model::session::QueueMode;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::testing::{ModelServer, eventually};

use crate::approvals::{approve, asked};
use crate::bench::{Bench, dispatch, session};
use crate::models::{config, send};

/// A server that takes payments, unless the file `away` is beside it; then it says that it was tried, and is gone.
const SERVER: &str = r#"
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
def note(name, line):
    open(os.path.join(here, name), "a").write(line + "\n")
if os.path.exists(os.path.join(here, "away")):
    note("tried", "tried")
    sys.exit(1)
tools = [{"name": "pay", "description": "pays", "inputSchema": {"type": "object"}}]
for line in sys.stdin:
    asked = json.loads(line)
    method = asked.get("method")
    if "id" not in asked:
        continue
    if method == "initialize":
        version = asked["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "shop", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": tools}
    elif method == "tools/call":
        note("paid", json.dumps(asked["params"]["arguments"]))
        result = {"content": [{"type": "text", "text": "paid"}]}
        if len(tools) == 1:
            tools.append(dict(tools[0], name="refund"))
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_call_waits_for_its_server_and_an_interrupt_does_not() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (program, away) = (folder.path().join("shop.py"), folder.path().join("away"));
    let (paid, tried) = (folder.path().join("paid"), folder.path().join("tried"));
    std::fs::write(&program, SERVER).expect("a program");
    let personas = format!(
        "mcp_servers:\n  shop: {{command: python3, args: ['{}']}}\n\
         personas:\n  default: {{runner: llm, tools: [], mcp_servers: [shop], requires_confirmation: [{{tools: ['shop__*']}}]}}\n",
        program.display()
    );

    let server = ModelServer::ruled(|request, _| match request.tool_results().last() {
        Some(result) => ScriptedAnswer::text(result),
        None if request.body.to_string().contains("message 2") => ScriptedAnswer::text("as you like"),
        None => ScriptedAnswer::calls([ScriptedCall::new("c1", "shop__pay", &json!({"amount": 5}))]),
    })
    .await;

    let llm = || config(&server, ModelProvider::OpenAi, "openai");
    let first = bench.run_asking("b1", &personas, llm()).await;
    let (main, other) = (session("main"), session("other"));
    let question = async |here| {
        eventually("a question", async || asked(&bench.entries(here).await).len() == 1).await;
        eventually("its slot is free", async || bench.claims().await == 0).await;
        asked(&bench.entries(here).await).pop().expect("a question").id
    };

    send(&bench, &main, 1, &["*"], 0).await;
    let main_question = question(&main).await;
    send(&bench, &other, 1, &["*"], 0).await;
    let other_question = question(&other).await;
    first.stop().await;
    std::fs::write(&away, "").expect("a file");
    let second = bench.run_asking("b2", &personas, llm()).await;
    approve(second.broker.desk(), &main_question).await;
    approve(second.broker.desk(), &other_question).await;

    let decided = async |here| {
        let entries = bench.entries(here).await;
        entries
            .iter()
            .any(|entry| matches!(entry, LedgerEntry::Owned { broker, .. } if broker == "b2"))
    };

    eventually("both go on", async || decided(&main).await && decided(&other).await).await;
    eventually("the server is tried again and again", async || lines(&tried) >= 2).await;

    // Whoever does not want it any more does not wait.
    let mut stop = dispatch(&other, 2);
    stop.queue_mode = Some(QueueMode::Interrupt);
    bench.publish(&stop).await;
    eventually("the other turn", async || bench.completed(&other).await.len() == 1).await;
    let ended = |entry: &LedgerEntry| matches!(entry, LedgerEntry::ToolFinished { .. });

    assert!(!bench.entries(&main).await.iter().any(ended), "it waits");

    std::fs::remove_file(&away).expect("it is back");
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    assert_eq!(lines(&paid), 1, "paid once");

    // Behind the cards that asked for both, and after the turn that it is of.
    eventually("the answer", async || {
        let mut replies = bench.replies().await.into_iter();
        replies.any(|reply| reply.session == main && reply.content == "paid")
    })
    .await;

    for (id, status) in [
        (&main_question, ApprovalStatus::Consumed),
        (&other_question, ApprovalStatus::Canceled),
    ] {
        eventually(status.name(), async || {
            let standing = second.broker.desk().get(id).await.expect("KV");
            standing.is_some_and(|standing| standing.status == status)
        })
        .await;
    }

    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_that_a_server_has_more_of_are_offered_to_the_next_turn() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("shop.py");
    std::fs::write(&program, SERVER).expect("a program");
    let personas = format!(
        "mcp_servers:\n  shop: {{command: python3, args: ['{}']}}\n\
         personas:\n  default: {{runner: llm, tools: [], mcp_servers: [shop]}}\n",
        program.display()
    );

    let server = ModelServer::ruled(|request, _| match request.tool_results().last() {
        Some(result) => ScriptedAnswer::text(result),
        None => ScriptedAnswer::calls([ScriptedCall::new("c1", "shop__pay", &json!({"amount": 5}))]),
    })
    .await;
    let running = bench
        .run_asking("b1", &personas, config(&server, ModelProvider::OpenAi, "openai"))
        .await;

    let main = session("main");
    for event in 1..=2_u64 {
        send(&bench, &main, event, &["*"], 0).await;
        let turns = usize::try_from(event).expect("few");
        eventually("the turn", async || bench.completed(&main).await.len() == turns).await;
    }

    let offered: Vec<Vec<String>> = server
        .requests()
        .iter()
        .map(|request| request.offered_tools())
        .collect();
    assert_eq!(offered.first(), Some(&vec!["shop__pay".to_owned()]));
    assert_eq!(
        offered.last(),
        Some(&vec!["shop__pay".to_owned(), "shop__refund".to_owned()])
    );

    running.stop().await;
}
