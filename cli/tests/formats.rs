//! The three forms of a command's result, its exit codes, and the order of what it streams, on a real server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use adapter_svc::backfill::accounts::BackfillAccounts;
use adapter_svc::backfill::desk;
use adapter_svc::source::webchat::owner_api;
use axum::http::StatusCode;
use scheduler_svc::operator::OperatorContext;
use serde_json::{Value, json};
use shared::breaker::{Breaker, BreakerPolicy, key_of};
use shared::bus::{Bus, OutgoingMessage, ServiceHandle};
use shared::clock::{SharedClock, SharedIds, SystemClock, SystemIds};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::held::HELD_LETTER;
use shared::wire::subject;
use shared::wire::topology::{buckets, streams};
use tempfile::TempDir;
use tokio::process::Command;

/// Address at which nothing listens.
const NOWHERE: &str = "nats://127.0.0.1:1";
/// Part of an event's id that makes it as long as the ids of webhooks.
const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Output of a command, and its exit code.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: String,
    err: String,
}

/// A server with the topology of Nexus and the services for operators, and a directory for the command.
struct World {
    server: NatsServer,
    bus: Bus,
    directory: TempDir,
    _services: Vec<ServiceHandle>,
}

/// Serves what services answer to operators alone, in this process.
async fn serve_operators(bus: &Bus) -> Vec<ServiceHandle> {
    let (clock, ids): (SharedClock, SharedIds) = (Arc::new(SystemClock), Arc::new(SystemIds));
    let context = OperatorContext {
        bus: bus.clone(),
        clock: Arc::clone(&clock),
        ids: Arc::clone(&ids),
        replicas: 1,
    };

    let mut specs = scheduler_svc::operator::service_specs(&context);
    specs.extend(hook_svc::operator::service_specs(bus, &clock, &ids));
    specs.push(owner_api::service_spec(bus, &clock, &ids));
    let accounts = BackfillAccounts::new([], [("telegram", "main".to_owned(), "bots have none")]);
    specs.push(desk::service_spec(bus, &accounts, &clock, &ids));
    let mut handles = Vec::new();
    for spec in specs {
        handles.push(bus.serve(spec).await.expect("served"));
    }
    handles
}

impl World {
    async fn start() -> Self {
        let (server, bus) = shared::testing::world().await;
        Self {
            server,
            _services: serve_operators(&bus).await,
            bus,
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    /// Runs `nexus` on the server.
    async fn nexus(&self, arguments: &[&str]) -> Ended {
        let url = self.server.url();
        nexus(self.directory.path(), &[&["--server", &url], arguments].concat()).await
    }

    /// Runs `nexus` with `--json`, and returns what it prints.
    async fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.nexus(&[&["--json"], arguments].concat()).await;
        assert_eq!(ended.code, 0, "{arguments:?}: {ended:?}");
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {ended:?}"))
    }

    /// Checks that the command ends with `code`, with and without `--json`, and says `why`.
    async fn fails(&self, code: i32, arguments: &[&str], why: &str) {
        for options in [&[][..], &["--json"], &["--quiet"]] {
            let ended = self.nexus(&[options, arguments].concat()).await;
            assert_eq!(ended.code, code, "{options:?} {arguments:?}: {ended:?}");
            assert!(ended.err.contains(why), "{options:?} {arguments:?}: {ended:?}");
        }
    }

    /// Stores a dead letter of `service`, and returns its number.
    async fn letter(&self, service: &str, detail: &str) -> u64 {
        let letter = DeadLetter {
            service: service.to_owned(),
            subject: "nexus.ev.a.b".to_owned(),
            redrive_subject: String::new(),
            stream: streams::EVENTS.to_owned(),
            sequence: 7,
            headers: Vec::new(),
            payload: DeadLetter::encode_payload(b"two\nlines"),
            reason: "malformed".to_owned(),
            detail: detail.to_owned(),
            attempts: 1,
            at: UnixMillis(1_000),
        };
        let out = OutgoingMessage::json(subject::dlq(service), &letter);
        self.bus.publish(out).await.expect("stored").sequence
    }

    /// Stores an event.
    async fn event(&self, id: &str) {
        let mut event = Event::new(EventId::parse(id).expect("an id"), "webhook", "me", UnixMillis(1));
        event.content = "a text that is much longer than any column in which it could be shown".to_owned();
        let out = OutgoingMessage::new(subject::event(&event), &event);
        self.bus.publish(out).await.expect("stored");
    }
}

async fn nexus(directory: &Path, arguments: &[&str]) -> Ended {
    let output = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .await
        .expect("nexus runs");
    Ended {
        code: output.status.code().expect("a code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// The error lists the values that an option has, in no words of the parser.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_value_is_told_what_is_expected() {
    let world = World::start().await;
    for (words, told) in [
        (
            ["intent", "list", "--status", "foo"],
            "--status foo: expected one of proposed, pending, running,",
        ),
        (
            ["approval", "list", "--status", "foo"],
            "--status foo: expected one of pending, approved,",
        ),
        (
            ["intent", "propose", "--level=most", "{}"],
            "--level most: expected full, restricted,",
        ),
        (
            ["intent", "propose", "--persona=a", "{}"],
            "invalid intent: missing key `kind`",
        ),
        (
            ["intent", "propose", "--persona=a", "{"],
            "invalid intent: EOF while parsing an object",
        ),
        (
            ["intent", "reschedule", "01M8B1GR000000000000000000", "{}"],
            "invalid schedule: ",
        ),
    ] {
        world.fails(2, &words, told).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_what_went_wrong() {
    let world = World::start().await;
    let held = world.letter(HELD_LETTER, "held").await.to_string();
    let mut failed = Breaker::for_hook("rests", "1");
    failed = failed
        .after_failure(&BreakerPolicy::default(), "a", UnixMillis(1))
        .expect("it counts");
    let breakers = world.bus.kv::<Breaker>(buckets::BREAKERS);
    breakers.create(&key_of("rests"), &failed).await.expect("stored");
    let reset = world.nexus(&["breaker", "reset", "rests"]).await;
    assert_eq!((reset.code, reset.err.as_str()), (0, ""), "{reset:?}");

    // 1: the answer is no.
    world.fails(1, &["status"], "are not ready").await;

    // 2: the command line is wrong.
    world.fails(2, &["events", "show", "nobody"], "nobody").await;
    world
        .fails(2, &["tail", "--streams", "claims"], "no stream `claims`")
        .await;
    world
        .fails(2, &["--config", "none.toml", "dlq", "list"], "none.toml")
        .await;
    let since = ["events", "search", "x", "--since", "yesterday"];
    world.fails(2, &since, "--since `yesterday`").await;
    let both = world.nexus(&["dlq", "list", "--json", "--quiet"]).await;
    assert_eq!(both.code, 2, "{both:?}");

    world
        .fails(2, &["backfill", "show", "slack"], "expected CHANNEL/NAME")
        .await;

    // 3: the thing does not exist.
    world.fails(3, &["dlq", "show", "99"], "no dead letter 99").await;
    world.fails(3, &["dlq", "drop", "99"], "no dead letter 99").await;
    world
        .fails(3, &["breaker", "reset", "nobody"], "nobody has no recorded errors")
        .await;
    world.fails(3, &["owner", "remove", "nobody"], "nobody").await;
    let backfill = |account| ["backfill", "start", account, "--since", "2d"];
    world
        .fails(3, &backfill("slack/nobody"), "no account `slack/nobody`")
        .await;
    world
        .fails(3, &["backfill", "show", "slack/main"], "no backfill of `slack/main`")
        .await;
    world.fails(3, &["recover", "redo", "nobody"], "nobody").await;
    world.fails(3, &["down", "--data", "nowhere"], "nowhere").await;
    world.fails(3, &["logs"], "there are no logs").await;

    // 4: nobody answers.
    let down = ["--server", NOWHERE, "dlq", "list"];
    let ended = nexus(world.directory.path(), &down).await;
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(
        ended.err.contains("is it running? `nexus up` starts one here"),
        "{ended:?}"
    );
    world
        .fails(4, &["hook", "list"], "hook-svc is not running on this server")
        .await;
    world.fails(4, &["approval", "list"], "broker-svc is not running").await;

    // 5: the state does not allow it.
    world
        .fails(5, &["breaker", "reset", "rests"], "rests is not paused")
        .await;
    world
        .fails(
            5,
            &backfill("telegram/main"),
            "telegram/main has no history: bots have none",
        )
        .await;
    world.fails(5, &["dlq", "drop", &held], "nexus recover list").await;
    assert_eq!(world.nexus(&["init", "new"]).await.code, 0);
    world.fails(5, &["init", "new"], "nexus.toml").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_a_table_an_array_or_ids() {
    let world = World::start().await;
    let detail = "a detail that is much longer than the room that a terminal has for it \u{1b}[2J";
    let numbers = [
        world.letter("broker-svc", detail).await,
        world.letter("hook-svc", detail).await,
    ];

    let list = world.json(&["dlq", "list"]).await;
    let listed: Vec<u64> = list
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(|one| one["number"].as_u64())
        .collect();
    assert_eq!(listed, numbers);
    let one = world.json(&["dlq", "show", &numbers[1].to_string()]).await;
    assert_eq!(
        (&one["number"], &one["letter"]),
        (&list[1]["number"], &list[1]["letter"])
    );

    let ids = world.nexus(&["dlq", "list", "--quiet"]).await;
    assert_eq!(ids.out, format!("{}\n{}\n", numbers[0], numbers[1]));
    let one = world.nexus(&["dlq", "show", "1", "-q"]).await;
    assert_eq!(one.out, "1\n");

    let table = world.nexus(&["dlq", "list", "--utc"]).await.out;
    assert!(table.contains("1970-01-01 00:00:01  broker-svc"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains('…') && !table.contains('\u{1b}'), "{table}");
    let wide = world.nexus(&["dlq", "list", "--utc", "--wide"]).await.out;
    assert!(wide.contains("has for it \\u{1b}[2J") && !wide.contains('…'), "{wide}");

    let directory = world.directory.path();
    let local = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .args(["--server", &world.server.url(), "dlq", "show", "1"])
        .env("TZ", "Asia/Tokyo")
        .current_dir(directory)
        .output()
        .await
        .expect("nexus runs");
    let local = String::from_utf8_lossy(&local.stdout).into_owned();
    assert!(local.contains("at        1970-01-01 09:00:01\n"), "{local}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_dropped_for_good() {
    let world = World::start().await;
    for service in ["broker-svc", "hook-svc", "hook-svc", HELD_LETTER] {
        world.letter(service, "x").await;
    }

    let dropped = world.json(&["dlq", "drop", "1"]).await;
    let expected = json!({ "number": 1, "service": "broker-svc", "reason": "malformed", "repeated": false });
    assert_eq!(dropped, expected);
    world.fails(3, &["dlq", "show", "1"], "no dead letter 1").await;

    let others = world.json(&["dlq", "drop", "--all", "--service", "broker-svc"]).await;
    assert_eq!(others, json!([]));
    let words = world.nexus(&["dlq", "drop", "--all"]).await;
    assert_eq!(
        words.out,
        "dead letter 2 is dropped: malformed of hook-svc\ndead letter 3 is dropped: malformed of hook-svc\n2 dead letters\n"
    );

    // A held message is decided by `nexus recover` alone.
    assert_eq!(world.nexus(&["dlq", "list", "--quiet"]).await.out, "4\n");
    let usage = world.nexus(&["dlq", "drop"]).await;
    assert_eq!(usage.code, 2, "{usage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_tailed_in_the_order_of_time() {
    let world = World::start().await;
    for number in 0..6 {
        world.event(&format!("webhook:{DIGEST}{number}")).await;
        world.letter("hook-svc", &format!("letter {number}")).await;
    }

    let tail = ["tail", "--streams", "dlq,events", "--last", "99", "--limit", "12"];
    let ended = world.nexus(&[&["--json"], &tail[..]].concat()).await;
    let lines: Vec<Value> = ended
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let at: Vec<i64> = lines.iter().filter_map(|line| line["at"].as_i64()).collect();
    assert!(at.len() == 12 && at.is_sorted(), "{at:?}");
    let read: BTreeSet<&str> = lines.iter().filter_map(|line| line["stream"].as_str()).collect();
    assert_eq!(read, BTreeSet::from(["DLQ", "EVENTS"]));

    // Ids are whole, and everything else fits.
    let words = world.nexus(&tail).await.out;
    for number in 0..6 {
        assert!(words.contains(&format!("webhook:{DIGEST}{number}")), "{words}");
    }
    let short = words.lines().filter(|line| !line.contains(DIGEST));
    assert!(short.into_iter().all(|line| line.chars().count() <= 80), "{words}");

    let ids = world.nexus(&[&["--quiet"], &tail[..]].concat()).await.out;
    assert_eq!(ids.lines().filter(|id| id.starts_with("webhook:")).count(), 6, "{ids}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_whose_reader_goes_is_no_failure() {
    let world = World::start().await;
    for number in 0..20 {
        world.letter("hook-svc", &format!("letter {number}")).await;
    }

    let nexus = format!("{} --server {}", env!("CARGO_BIN_EXE_nexus"), world.server.url());
    for command in [
        "dlq list",
        "tail --streams dlq --last 20 --limit 20",
        "--json dlq list",
        "completions bash",
    ] {
        let script = format!("set -o pipefail; {nexus} {command} | head -1");
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(world.directory.path())
            .output()
            .await
            .expect("bash runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{command}: {}: {said}",
            output.status
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1, "{command}");
    }
}

/// Serves `/v1/events`, and answers with `status` and `answer`. Returns its address and a file with a token.
async fn gateway(directory: &Path, status: StatusCode, answer: Value) -> (String, PathBuf) {
    let token = directory.join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").expect("written");
    let answers = move || async move { (status, axum::Json(answer)) };
    let router = axum::Router::new().route("/v1/events", axum::routing::post(answers));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}"), token)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sent_event_is_its_id_on_a_pipe() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let (url, token) = gateway(
        here,
        StatusCode::ACCEPTED,
        json!({ "accepted": 1, "ids": ["local:one"] }),
    )
    .await;
    let token = token.to_str().expect("UTF-8").to_owned();
    let send = ["send", "hello", "--token-file", &token, "--url"];

    let sent = nexus(here, &[&send[..], &[&url]].concat()).await;
    assert_eq!((sent.code, sent.out.as_str()), (0, "local:one\n"), "{sent:?}");
    let sent = nexus(here, &[&send[..], &[&url, "--json"]].concat()).await;
    assert_eq!(
        serde_json::from_str::<Value>(&sent.out).expect("JSON"),
        json!({ "id": "local:one" })
    );

    let refusal = json!({ "error": { "message": "channel not allowed" } });
    let (url, _) = gateway(here, StatusCode::FORBIDDEN, refusal).await;
    let refused = nexus(here, &[&send[..], &[&url]].concat()).await;
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.err.contains("channel not allowed"), "{refused:?}");

    let down = nexus(here, &[&send[..], &["http://127.0.0.1:1"]].concat()).await;
    assert_eq!(down.code, 4, "{down:?}");
    assert!(down.err.contains("is adapter-svc running?"), "{down:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_and_man_know_the_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    for shell in ["bash", "zsh", "fish"] {
        let script = nexus(here, &["completions", shell]).await;
        assert!(
            script.code == 0 && script.out.contains("redrive"),
            "{shell}: {}",
            script.err
        );
    }

    let pages = nexus(here, &["man", "pages", "--quiet"]).await;
    assert_eq!(pages.code, 0, "{}", pages.err);
    for page in ["pages/nexus.1", "pages/nexus-dlq-drop.1", "pages/nexus-tail.1"] {
        assert!(pages.out.lines().any(|line| line == page), "{page}: {}", pages.out);
    }
    let text = std::fs::read_to_string(here.join("pages/nexus-dlq-drop.1")).expect("a page");
    assert!(text.contains("Delete one dead letter"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_written_twice_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let text = "[adapter]\nlisten = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n";
    std::fs::write(here.join("nexus.toml"), text).expect("written");
    let ended = nexus(here, &["topology", "plan"]).await;
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(
        ended.err.contains("nexus.toml: line 3: duplicate key `listen`"),
        "{ended:?}"
    );
}
