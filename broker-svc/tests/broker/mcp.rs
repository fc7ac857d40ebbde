//! Real MCP servers, the reference ones of the npm registry, used by an agent: over standard input and output, and
//! over streamable HTTP. They are fetched once, pinned by `tests/mcp-servers/bun.lock`; where they cannot be, the tests
//! say so and check nothing. With `CI=true` they fail, unless `NEXUS_NPM=absent` says that this machine has no registry.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use shared::llm::ModelProvider;
use shared::model::ledger::{LedgerEntry, ToolOutcome};
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::testing::{ModelServer, eventually, says};
use tokio::process::{Child, Command};

use crate::bench::{Bench, session};
use crate::models::{config, send};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn bun() -> PathBuf {
    let own = root().join(".tools/bin/bun");
    if own.exists() { own } else { PathBuf::from("bun") }
}

/// How often the registry is asked.
const TRIES: u32 = 3;

/// Where the servers are, each test with its own copy; none where this machine has no registry to fetch them from.
///
/// # Panics
/// Where it ought to have one: what is never checked must not look like what holds.
async fn servers() -> Option<(PathBuf, tempfile::TempDir)> {
    if says("NEXUS_NPM", "absent") {
        println!("SKIPPED: NEXUS_NPM=absent");
        return None;
    }

    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    for name in ["package.json", "bun.lock"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/mcp-servers")
            .join(name);
        std::fs::copy(from, place.join(name)).expect("a copy");
    }

    // Bun's cache is the user's: of several tests, in whatever process, one at a time fills it.
    let lock = std::fs::File::create(std::env::temp_dir().join("nexus-mcp-servers.lock")).expect("a lock");
    let lock = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock)).await;
    let _held = lock.expect("no panic").expect("the lock");

    let mut why = String::new();
    for _ in 0..TRIES {
        match install(place).await {
            Ok(()) => return Some((place.join("node_modules/@modelcontextprotocol"), folder)),
            Err(error) => why = error,
        }
    }

    let why = format!("the MCP servers cannot be fetched from the npm registry: {why}");
    assert!(!says("CI", "true"), "{why}; NEXUS_NPM=absent leaves this out");

    println!("SKIPPED: {why}");
    None
}

/// How long a registry may take.
const INSTALLED_WITHIN: Duration = Duration::from_secs(40);

/// Fetches what `place` wants; why not.
async fn install(place: &Path) -> Result<(), String> {
    let mut install = Command::new(bun());
    install
        .args(["install", "--frozen-lockfile", "--ignore-scripts"])
        .current_dir(place)
        .stdin(Stdio::null())
        .kill_on_drop(true);

    let done = tokio::time::timeout(INSTALLED_WITHIN, install.output()).await;
    let done = done
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    if done.status.success() {
        Ok(())
    } else {
        Err(format!("{}: {}", done.status, String::from_utf8_lossy(&done.stderr)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_uses_the_tools_of_a_server_that_its_permissions_name() {
    let Some((servers, _folder)) = servers().await else {
        return;
    };

    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("note.txt"), "the cake is in the oven").expect("a file");
    let (index, files) = (servers.join("server-filesystem/dist/index.js"), folder.path());

    let personas = format!(
        "mcp_servers:\n  files: {{command: '{}', args: ['{}', '{}'], idempotent: ['read_*']}}\n\
         personas:\n  default: {{runner: llm, tools: [], mcp_servers: [files]}}\n",
        bun().display(),
        index.display(),
        files.display(),
    );

    let (note, stolen) = (files.join("note.txt"), files.join("stolen.txt"));
    let server = ModelServer::ruled(move |request, _| match request.tool_results().last() {
        None => ScriptedAnswer::calls([
            ScriptedCall::new("c1", "files__read_text_file", &json!({"path": note})),
            ScriptedCall::new("c2", "files__write_file", &json!({"path": stolen, "content": "x"})),
        ]),
        Some(_) => ScriptedAnswer::text(&request.tool_results().join(" | ")),
    })
    .await;

    let running = bench
        .run_asking("b1", &personas, config(&server, ModelProvider::OpenAi, "openai"))
        .await;
    let main = session("main");
    send(&bench, &main, 1, &["files__read_*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let offered = server.requests()[0].offered_tools();

    assert!(
        !offered.is_empty() && offered.iter().all(|name| name.starts_with("files__read_")),
        "{offered:?}"
    );

    let reply = bench.until_replies(1).await.pop().expect("a reply").content;
    assert!(
        reply.contains("the cake is in the oven") && reply.contains("no tool `files__write_file`"),
        "{reply}"
    );
    assert!(!files.join("stolen.txt").exists());

    running.stop().await;
}

/// A server that listens, and its port; it ends where somebody took the port before it could, and another is tried.
async fn listening(servers: &Path) -> (Child, u16) {
    let start = || {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))
            .and_then(|l| l.local_addr())
            .expect("a port")
            .port();
        let mut http = Command::new(bun());
        http.arg(servers.join("server-everything/dist/index.js"))
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);

        (http.spawn().expect("a server"), port)
    };

    let (mut http, mut port) = start();
    eventually("it listens", async || {
        if http.try_wait().expect("its state").is_some() {
            (http, port) = start();
        }
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;

    (http, port)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_at_an_address_gets_the_credential_only_for_turns_that_have_it() {
    let Some((servers, _folder)) = servers().await else {
        return;
    };

    let bench = Bench::start().await;
    let (mut http, port) = listening(&servers).await;
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "t0ken").expect("a secret");

    let personas = format!(
        "credentials: {{every: 'file:{}'}}\n\
         mcp_servers:\n  every: {{url: 'http://127.0.0.1:{port}/mcp', headers: {{x-token: 'credential:every'}}}}\n\
         personas:\n  default: {{runner: llm, tools: [], mcp_servers: [every]}}\n",
        secret.path().display(),
    );

    let server = ModelServer::ruled(|request, _| match request.tool_results().last() {
        None => ScriptedAnswer::calls([ScriptedCall::new(
            "c1",
            "every__echo",
            &json!({"message": "hello there"}),
        )]),
        Some(result) => ScriptedAnswer::text(result),
    })
    .await;
    let running = bench
        .run_asking("b1", &personas, config(&server, ModelProvider::Anthropic, "anthropic"))
        .await;

    let without = session("without");
    send(&bench, &without, 1, &["every__*"], 0).await;
    eventually("the turn", async || bench.completed(&without).await.len() == 1).await;

    let outcome = bench.entries(&without).await.into_iter().find_map(|entry| {
        let LedgerEntry::ToolFinished { outcome, .. } = entry else {
            return None;
        };
        Some(outcome)
    });

    let error = "credential `every` is not granted to this turn".to_owned();
    assert_eq!(outcome, Some(ToolOutcome::Error { error }));

    let granted = session("granted");
    let mut dispatch = crate::bench::dispatch(&granted, 1);
    dispatch.permissions.level = shared::model::permission::PermissionLevel::Full;
    bench.publish(&dispatch).await;
    bench.claim(&granted).await;
    eventually("the turn", async || bench.completed(&granted).await.len() == 1).await;
    let mut replies = bench.until_replies(2).await;
    replies.retain(|reply| reply.session == granted);

    assert!(replies[0].content.contains("hello there"), "{}", replies[0].content);

    let requests = server.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.body.to_string().contains("t0ken")),
        "no secret is shown"
    );

    running.stop().await;
    http.kill().await.expect("it is ended");
}
