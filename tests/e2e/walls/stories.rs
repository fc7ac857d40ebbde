//! Whole stories under the users of the services: nothing that they do is refused.

use std::path::PathBuf;
use std::time::Duration;

use cli::auth::folder::{AuthFolder, credentials_path};
use cli::auth::registry::WantedUser;
use cli::auth::seconds_now;
use cli::launch::users;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::testing::connect;
use shared::wire::headers::Headers;
use shared::wire::rights::BusRole;
use tests::command::{command, nexus};
use tests::eventually::eventually;
use tests::record::Record;
use tests::subject_record::read_violations;
use tests::world::{Setup, World};

use crate::story::{ANSWER, Agent, PATIENCE, REMOTE, event, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_and_a_chat_message_reach_their_ends_and_nothing_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let said = nexus(directory.path(), &["demo", "--keep"]).await;
    assert_eq!(said.code, Some(0), "{}\n{}", said.out, said.err);

    let words = format!("{}\n{}", said.out, said.err);
    let kept = words
        .split_whitespace()
        .map(|word| PathBuf::from(word.trim_end_matches(['.', ','])))
        .find(|path| path.join("log/nats-0.log").is_file())
        .unwrap_or_else(|| panic!("no directory in\n{words}"));
    let log = std::fs::read_to_string(kept.join("log/nats-0.log")).expect("the server's log");
    assert_eq!(read_violations(&log), Vec::<&str>::new());
    std::fs::remove_dir_all(kept).expect("removed");
}

/// A world whose agent is a user of its own, in an account of its own.
async fn world() -> (World, Bus) {
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        personas: REMOTE.to_owned(),
        users: true,
        trace: true,
        ..Setup::default()
    })
    .await;
    let bus = connect(&world.stack.nats_config(BusRole::Agent), "agent").await;
    Agent::listen(&bus).await.serve();
    (world, bus)
}

/// Sends `count` messages, and waits until all are answered.
async fn answered(world: &World, count: usize) {
    for number in 0..count {
        send(world, &event(&format!("e2e:p/{number}"), "p", "hello")).await;
    }
    eventually("all are answered", PATIENCE, async || {
        let delivered = Record::read(&world.bus).await.delivered().len();
        if delivered >= count {
            return Ok(());
        }
        Err(format!("{delivered} of {count}\n{}", world.logs()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_and_the_commands_about_it_go_without_a_refusal() {
    let (mut world, _agent) = world().await;
    answered(&world, 3).await;
    for arguments in [
        &["status"][..],
        &["topology", "plan"],
        &["hook", "list"],
        &["session", "list"],
        &["schedule", "list"],
        &["intent", "list"],
        &["approval", "list"],
        &["dlq", "list"],
        &["breaker", "list"],
        &["recover", "list"],
        &["events", "search", "hello"],
        &["trace", "e2e:p/0"],
        &["owner", "list"],
    ] {
        world.words(arguments).await;
    }

    // Replicas come and go: what they share is given back and taken over.
    world.scale("hook-svc", 2).await;
    world.scale("delivery-svc", 2).await;
    world.scale("broker-svc", 2).await;
    answered(&world, 6).await;
    world.scale("hook-svc", 1).await;
    let log = world.path().join("log/nats-0.log");
    world.stack.stop().await;

    let log = std::fs::read_to_string(log).expect("the server's log");
    assert_eq!(read_violations(&log), Vec::<&str>::new());
}

/// What a viewer asks for.
const LOOKS: [&[&str]; 17] = [
    &["status"],
    &["hook", "list"],
    &["hook", "show", "answer"],
    &["session", "list"],
    &["session", "show", "default", "s-p"],
    &["session", "wait", "default", "s-p"],
    &["schedule", "list"],
    &["schedule", "next", "every 5m"],
    &["intent", "list"],
    &["approval", "list"],
    &["dlq", "list"],
    &["breaker", "list"],
    &["recover", "list"],
    &["audit"],
    &["events", "search", "hello"],
    &["trace", "e2e:p/0"],
    &["owner", "list"],
];

/// What a viewer may not ask for.
const CHANGES: [&str; 5] = [
    "hook.disable",
    "session.reset",
    "approval.decide",
    "dlq.drop",
    "owner.offer",
];

/// How long is waited for an answer that does not come.
const SILENCE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_what_there_is_and_changes_nothing() {
    let (world, _agent) = world().await;
    answered(&world, 1).await;
    let folder = users::folder(world.path());
    let wanted = WantedUser {
        name: "vera".to_owned(),
        role: BusRole::Viewer,
        channel: None,
        personas: Vec::new(),
        expires: None,
    };
    let mut keys = AuthFolder::open(&folder, false).expect("the folder of keys");
    keys.add(wanted, seconds_now()).expect("added");
    drop(keys);

    // The servers need not hear of a user: the key of its role has made it.
    let as_viewer = async |arguments: &[&str]| {
        let mut command = command(world.path(), arguments);
        command.env("NEXUS__NATS__CREDENTIALS", credentials_path(&folder, "vera"));
        command.output().await.expect("nexus starts")
    };
    for arguments in LOOKS {
        let said = as_viewer(arguments).await;
        assert!(said.status.success(), "{arguments:?}: {said:?}");
    }

    let mut config = world.stack.nats_config(BusRole::Operator);
    config.credentials = credentials_path(&folder, "vera").display().to_string();
    let vera = connect(&config, "vera").await;
    for endpoint in CHANGES {
        let subject = format!("nexus.svc.{endpoint}");
        let question = json!({});
        let asked = vera.request::<_, Value>(&subject, Headers::new(), &question, SILENCE);
        assert!(asked.await.is_err(), "{endpoint}");
    }

    let log = world.path().join("log/nats-0.log");
    let log = std::fs::read_to_string(log).expect("the server's log");
    let violations = read_violations(&log);
    let is_one = |line: &&str| {
        CHANGES
            .iter()
            .any(|endpoint| line.contains(&format!("nexus.svc.{endpoint}")))
    };
    assert!(violations.iter().all(is_one), "{violations:?}");
    assert!(violations.len() >= CHANGES.len(), "{violations:?}");
    world.stack.stop().await;
}
