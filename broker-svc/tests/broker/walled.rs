//! A program of an agent that runs as our own user and wants what it must not have: secrets' files, the server, the broker.

use std::path::Path;
use std::sync::Arc;

use broker_svc::child::walls::ProcessWalls;
use broker_svc::config::BrokerConfig;
use serde_json::{Value, json};
use shared::model::session::SessionRef;
use shared::testing::{eventually, says};
use tokio::process::Child;

use crate::bench::{Bench, broker_at, child, dispatch, run_broker, session, told};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_WALLED_URL";
/// Names its folder.
const FOLDER: &str = "NEXUS_TEST_WALLED_FOLDER";

/// Tries what its message names, and answers with what came of it.
const SCRIPT: &str = r#"
import json, os, signal, socket, subprocess, sys

request = json.loads(sys.stdin.readline())
asked = json.loads(request["messages"][-1]["content"])


def attempt(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__


def write(path):
    with open(path, "w") as file:
        file.write("mine")
    return "written"


def read(path):
    with open(path) as file:
        return file.read()


def connect():
    socket.create_connection(("127.0.0.1", asked["port"]), timeout=10).close()
    return "connected"


def listen():
    here = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(here.getsockname(), timeout=10).close()
    return "connected"


def by_another():
    made = subprocess.run(["cat", asked["secret"]], capture_output=True)
    return made.stdout.decode() if made.returncode == 0 else "failed"


found = {
    "secret": attempt(lambda: read(asked["secret"])),
    "by a child": attempt(by_another),
    "overwrite": attempt(lambda: write(asked["secret"])),
    "make": attempt(lambda: write(asked["secret"] + ".new")),
    "broker": attempt(lambda: os.kill(asked["broker"], 0) or "reached"),
    "server": attempt(connect),
    "others": attempt(listen),
    "own": attempt(lambda: write(os.path.join(asked["work"], "made")) and read(os.path.join(asked["work"], "made"))),
    "environment": "; ".join(sorted(set(os.environ) & {"NEXUS_CONFIG", "NEXUS_RUN_DIR", "NEXUS__NATS__CREDENTIALS"})),
}
print(json.dumps({"type": "answer", "content": json.dumps(found)}))
"#;

fn personas(folder: &Path, url: &str) -> String {
    let script = folder.join("work/wants.py");
    let program = format!("command: python3, args: ['{}']", script.display());
    format!(
        "personas: {{default: {{runner: process, process: {{{program}}}}}, \
         told: {{runner: process, process: {{{program}, env: {{NATS_URL: '{url}'}}}}}}}}"
    )
}

/// Not a test: what the child runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(folder)) = (told(URL), told(FOLDER)) else {
        return;
    };
    let folder = Path::new(&folder);
    let hidden = [folder.join("secrets").display().to_string()];
    let said = ProcessWalls::new(None, &hidden, &[], std::slice::from_ref(&url)).raise();
    println!("{said:?}");

    let broker = broker_at(&url, "walled", &personas(folder, &url), BrokerConfig::default()).await;
    let _running = run_broker(Arc::new(broker));
    std::future::pending::<()>().await;
}

/// What came of everything that a program of `persona` wants.
async fn wants(bench: &Bench, owner: &Child, persona: &str, folder: &Path) -> Value {
    let to = SessionRef {
        persona: persona.to_owned(),
        ..session("main")
    };
    let url = bench.server.url();
    let port: u16 = url
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok())
        .expect("a port");

    let mut one = dispatch(&to, 1);
    one.message.content = json!({
        "secret": folder.join("secrets/password"), "work": folder.join("work"), "port": port, "broker": owner.id(),
    })
    .to_string();

    bench.publish(&one).await;
    bench.claim(&to).await;
    let answers = async || bench.replies().await.into_iter().find(|reply| reply.session == to);
    eventually("the answer", async || answers().await.is_some()).await;
    let reply = answers().await.expect("it stays");

    serde_json::from_str(&reply.content).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_reaches_no_secret_no_server_and_not_the_broker() {
    if says("NEXUS_SANDBOX", "absent") {
        return println!("SKIPPED: NEXUS_SANDBOX=absent");
    }

    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("secrets/password", "pw"), ("work/wants.py", SCRIPT)] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("one")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    let (url, at) = (bench.server.url(), folder.path().display().to_string());
    let owner = child("walled::a_broker_of_its_own", &[(URL, &url), (FOLDER, &at)]);
    let found = wants(&bench, &owner, "default", folder.path()).await;
    let expected = json!({
        "secret": "PermissionError", "by a child": "failed", "overwrite": "PermissionError", "make": "PermissionError",
        "broker": "PermissionError", "server": "PermissionError", "others": "connected", "own": "mine",
        "environment": "",
    });

    assert_eq!(found, expected);
    assert_eq!(
        std::fs::read_to_string(folder.path().join("secrets/password")).expect("there"),
        "pw"
    );

    // An operator who tells a program of the server lets it reach it, and nothing else.
    let found = wants(&bench, &owner, "told", folder.path()).await;
    let mut told = expected;
    told["server"] = json!("connected");

    assert_eq!(found, told);
}
