//! Command hooks and MCP servers are programs as well: they reach no secret, no token, no run directory and no NATS server.

use std::path::Path;
use std::sync::Arc;

use broker_svc::child::walls::ProcessWalls;
use broker_svc::config::BrokerConfig;
use broker_svc::hooks::rules::HookRules;
use serde_json::{Value, json};
use shared::clock::SystemClock;
use shared::llm::{self, LlmConfig, ModelProvider};
use shared::process::ShutdownSignal;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::testing::{ModelServer, eventually, says};

use crate::bench::{Bench, broker_at, child, run_broker, session, told};
use crate::models::send;

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_WALLED_TOOLS_URL";
/// Names its folder.
const FOLDER: &str = "NEXUS_TEST_WALLED_TOOLS_FOLDER";
/// Names the model that it asks.
const MODEL: &str = "NEXUS_TEST_WALLED_TOOLS_MODEL";

/// What is hidden, below the folder.
const HIDDEN: [&str; 3] = ["secrets", "run", "local-token"];

/// A hook that notes what it can reach, or a server whose one tool tells it.
const SCRIPT: &str = r#"
import json, os, socket, sys

here = os.path.dirname(os.path.abspath(__file__))
home, port = os.path.dirname(here), int(sys.argv[2])


def attempt(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__


def read(name):
    with open(os.path.join(home, name)) as file:
        return file.read()


def connect():
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    return "connected"


def found():
    return json.dumps({
        "secret": attempt(lambda: read("secrets/password")),
        "run": attempt(lambda: read("run/hook-svc.json")),
        "token": attempt(lambda: read("local-token")),
        "server": attempt(connect),
        "own": attempt(lambda: read("work/mine")),
    })


if sys.argv[1] == "hook":
    sys.stdin.read()
    with open(os.path.join(here, "hook.json"), "w") as file:
        file.write(found())
    sys.exit(0)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, result = asked["method"], {}
    if method == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "wants", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "look", "description": "looks", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": found()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

/// How the program is started: as a hook, or as a server.
fn command(folder: &Path, url: &str, what: &str) -> Vec<String> {
    let port = url.rsplit_once(':').map_or("", |(_, port)| port);
    let script = folder.join("work/wants.py").display().to_string();
    vec!["python3".to_owned(), script, what.to_owned(), port.to_owned()]
}

/// Not a test: what the child runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(folder), Some(base_url)) = (told(URL), told(FOLDER), told(MODEL)) else {
        return;
    };
    let folder = Path::new(&folder);
    let hidden = HIDDEN.map(|name| folder.join(name).display().to_string());
    println!(
        "{:?}",
        ProcessWalls::new(None, &hidden, &[], std::slice::from_ref(&url)).raise()
    );

    let server = command(folder, &url, "mcp");
    let personas = format!(
        "mcp_servers:\n  wants: {{command: python3, args: {:?}}}\n\
         personas:\n  default: {{runner: llm, tools: [], mcp_servers: [wants]}}\n",
        &server[1..]
    );

    let hook = command(folder, &url, "hook").join(" ");
    let hooks = format!(
        "enabled: true\nallow: {{all: ['{hook}']}}\n\
         hooks: [{{name: looks, hook: PreToolUse, command: '{hook}', blocking: true}}]"
    );

    let config = LlmConfig {
        provider: ModelProvider::OpenAi,
        model: "any".to_owned(),
        base_url,
        ..LlmConfig::default()
    };

    let model = llm::open(config, Arc::new(SystemClock), ShutdownSignal::default()).expect("a usable model");
    let broker = broker_at(&url, "walled", &personas, BrokerConfig::default()).await;
    let rules = HookRules::parse(&hooks, &broker.personas).expect("hooks");
    let _running = run_broker(Arc::new(broker.with_model(model).with_hooks(rules)));
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_hook_and_an_mcp_server_reach_no_secret_and_no_server() {
    if says("NEXUS_SANDBOX", "absent") {
        return println!("SKIPPED: NEXUS_SANDBOX=absent");
    }

    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("secrets/password", "pw"),
        ("run/hook-svc.json", "{}"),
        ("local-token", "token"),
        ("work/mine", "mine"),
        ("work/wants.py", SCRIPT),
    ] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("one")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    let model = ModelServer::ruled(|request, _| match request.tool_results().last() {
        Some(result) => ScriptedAnswer::text(result),
        None => ScriptedAnswer::calls([ScriptedCall::new("c1", "wants__look", &json!({}))]),
    })
    .await;
    let (url, at, base) = (
        bench.server.url(),
        folder.path().display().to_string(),
        model.base_url("openai"),
    );

    let _owner = child(
        "walled_tools::a_broker_of_its_own",
        &[(URL, &url), (FOLDER, &at), (MODEL, &base)],
    );
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;

    let denied = "PermissionError";
    let expected = json!({
        "secret": denied, "run": denied, "token": denied, "server": denied, "own": "mine",
    });
    let reply = bench.until_replies(1).await.pop().expect("a reply").content;
    let by_server: Value = serde_json::from_str(&reply).unwrap_or_else(|_| json!(reply));

    assert_eq!(by_server, expected, "the MCP server");

    let noted = std::fs::read_to_string(folder.path().join("work/hook.json")).expect("the hook ran");
    let by_hook: Value = serde_json::from_str(&noted).expect("JSON");
    assert_eq!(by_hook, expected, "the command hook");
}
