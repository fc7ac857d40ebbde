//! A restore onto a server that runs, and what is held because a stream lost its end: decided by an operator, told until then.

use std::path::Path;
use std::process::Stdio;

use cli::launch::users::credentials;
use cli::launch::{SERVICES, keys};
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::EventId;
use shared::process::status::ask_replicas;
use shared::projection::api::EventTrace;
use shared::testing::connect;
use shared::wire::rights::BusRole;
use shared::wire::topology::{streams, topology};
use tests::command::{Said, command};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::backup::{Heard, REPLICAS_WITHIN, arrivals, arrived, flag, setup};
use crate::story::{PATIENCE, event, send};

/// Runs `nexus` as the user `restore` of the world's server.
fn restorer(world: &World, arguments: &[&str]) -> tokio::process::Command {
    let mut command = command(world.path(), arguments);
    command
        .env("NEXUS__NATS__CREDENTIALS", credentials(world.path(), BusRole::Restore))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

async fn said(mut command: tokio::process::Command) -> Said {
    let output = command.output().await.expect("it runs");
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Posts an event of `peer`, dated now.
async fn posted(world: &World, peer: &str, number: u32) -> String {
    let id = format!("e2e:{peer}/{number}");
    let mut new = event(&id, peer, "hello");
    new["timestamp"] = SystemClock.now().0.into();
    send(world, &new).await;
    id
}

/// Waits until the answer to `id` arrived.
async fn answered(world: &World, heard: &Heard, id: &String) {
    eventually("it is answered", PATIENCE, async || {
        if arrived(heard).contains(id) {
            Ok(())
        } else {
            Err(format!("{id}\n{}", world.logs()))
        }
    })
    .await;
}

/// Starts the services named in `names`.
async fn begin(world: &mut World, names: &[&'static str]) {
    for name in names {
        world.stack.launch(name, 0).expect("it starts");
    }
    world.stack.ready().await.expect("everything comes up");
}

/// Of streams that are half restored there is no backup: it would be the newest one, with which the restore goes on.
async fn no_backup_of_half_a_restore(world: &World, place: &Path) {
    let restoring = connect(&world.stack.nats_config(BusRole::Restore), "restore").await;
    restoring.begin_restore("monday", 1).await.expect("marked");
    let half = world.tried(&["backup", flag(place)]).await;
    let refused = half.expect_err("a restore is in progress");
    assert!(refused.contains("backup monday is being restored"), "{refused}");
    restoring.end_restore().await.expect("unmarked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_onto_a_server_asks_first_what_it_may_and_goes_on_where_it_was_interrupted() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    let mut world = World::start(Setup { users: true, ..setup() }).await;
    let heard = arrivals(&world).await;
    let first = posted(&world, "p", 1).await;
    answered(&world, &heard, &first).await;
    world.stack.stop_services().await;
    world.words(&["backup", flag(&backup), "--quiesce"]).await;

    no_backup_of_half_a_restore(&world, &files.path().join("half")).await;

    // Nobody but its own user may: then nothing is begun, and nothing is lost.
    let before = world.bus.stream_state(streams::EVENTS).await.expect("asked");
    let refused = world.nexus(&["restore", flag(&backup), "--replace"]).await;
    assert!(refused.err.contains("nothing was changed"), "{refused:?}");
    assert!(refused.err.contains("$JS.API.STREAM.DELETE.EVENTS"), "{refused:?}");
    assert_eq!(world.bus.restore_under_way().await, Ok(None));
    assert_eq!(world.bus.stream_state(streams::EVENTS).await.expect("asked"), before);

    let taken = said(restorer(&world, &["restore", flag(&backup)])).await;
    assert!(taken.err.contains("--replace destroys"), "{taken:?}");

    // More replicas than the server carries are refused before anything is deleted.
    let many = said(restorer(
        &world,
        &["restore", flag(&backup), "--replace", "--replicas", "3"],
    ))
    .await;
    assert!(many.err.contains("nothing was changed"), "{many:?}");
    assert_eq!(world.bus.restore_under_way().await, Ok(None));
    assert_eq!(world.bus.stream_state(streams::EVENTS).await.expect("asked"), before);

    // Killed as soon as it has begun, it begins again.
    let mut killed = restorer(&world, &["restore", flag(&backup), "--replace"])
        .spawn()
        .expect("it starts");
    eventually("it has begun", PATIENCE, async || {
        let ended = killed.try_wait().expect("its state").is_some();
        if ended || world.bus.restore_under_way().await != Ok(None) {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;

    // It may have ended already.
    let _ = killed.kill().await;
    let again = said(restorer(&world, &["restore", flag(&backup), "--replace"])).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(
        !again.err.contains("are treated as unsealed"),
        "the key is the same: {again:?}"
    );
    assert_eq!(world.bus.restore_under_way().await, Ok(None));
    assert_eq!(
        world.bus.stream_state(streams::EVENTS).await.expect("asked").last,
        before.last
    );

    begin(&mut world, &["adapter-svc", "hook-svc", "broker-svc", "delivery-svc"]).await;
    let second = posted(&world, "p", 2).await;
    answered(&world, &heard, &second).await;
    let times = heard.lock().expect("not poisoned").clone();

    assert_eq!(times.into_iter().collect::<Vec<_>>(), [(first, 1), (second, 1)]);

    // Another key than that of the backup is said.
    let elsewhere = files.path().join("elsewhere");
    let told = world
        .nexus(&["restore", flag(&backup), "--data", flag(&elsewhere)])
        .await;

    assert_eq!(told.code, Some(0), "{told:?}");

    std::fs::write(elsewhere.join("cluster.key"), "7c".repeat(32)).expect("another key");
    let told = world
        .nexus(&["restore", flag(&backup), "--data", flag(&elsewhere), "--replace"])
        .await;

    assert!(
        told.code == Some(0) && told.err.contains("are treated as unsealed"),
        "{told:?}"
    );

    world.stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_one_server_is_restored_onto_three_where_the_services_go_on() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    let mut world = World::start(Setup { users: true, ..setup() }).await;
    let heard = arrivals(&world).await;
    let first = posted(&world, "p", 1).await;
    answered(&world, &heard, &first).await;
    world.stack.stop_services().await;
    world.words(&["backup", flag(&backup), "--quiesce"]).await;
    let before = world.bus.stream_state(streams::EVENTS).await.expect("asked");
    let key = std::fs::read(keys::cluster_key(world.path()).expect("a key")).expect("read");
    drop(world);

    let mut world = World::start(Setup {
        servers: 3,
        users: true,
        without: SERVICES.to_vec(),
        ..setup()
    })
    .await;
    std::fs::write(keys::cluster_key(world.path()).expect("a key"), key).expect("the key is put in place");
    let restored = said(restorer(&world, &["restore", flag(&backup), "--replicas", "3"])).await;
    assert_eq!(restored.code, Some(0), "{restored:?}");
    assert!(!restored.err.contains("warning"), "{restored:?}");

    // Each stream has its messages and the options of a cluster, three replicas among them.
    let drift = world.bus.find_drift(&topology(3)).await.expect("asked");
    assert!(drift.is_empty(), "{drift:?}");
    let after = world.bus.stream_state(streams::EVENTS).await.expect("asked");
    assert_eq!((after.last, after.messages), (before.last, before.messages));

    let heard = arrivals(&world).await;
    begin(&mut world, &SERVICES).await;
    let second = posted(&world, "p", 2).await;
    answered(&world, &heard, &second).await;
    let times = heard.lock().expect("not poisoned").clone();
    assert_eq!(times.into_iter().collect::<Vec<_>>(), [(second, 1)]);
    world.stack.stop().await;
}

/// What replica `instance` says of its positions; none = they hold.
async fn positions(world: &World, instance: &str) -> Option<String> {
    let replicas = ask_replicas(&world.bus, REPLICAS_WITHIN).await.expect("asked");
    let one = replicas
        .into_iter()
        .find(|one| one.instance == instance)
        .expect(instance);
    assert!(one.ready, "{one:?}");
    one.parts.get("positions").map(|part| part.detail.clone())
}

/// What `nexus trace` knows of the event `id`.
async fn traced(world: &World, id: &str) -> EventTrace {
    let id = EventId::parse(id).expect("an id");
    cli::trace::ask_trace(&world.bus, &id).await.expect("asked")
}

/// Empties `RECEIPTS`, which had come further.
async fn forget_receipts(world: &World) {
    let state = world.bus.stream_state(streams::RECEIPTS).await.expect("asked");
    for sequence in state.first..=state.last {
        world
            .bus
            .delete_message(streams::RECEIPTS, sequence)
            .await
            .expect("deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn what_is_held_is_listed_and_told_until_an_operator_has_decided() {
    let mut world = World::start(setup()).await;
    let heard = arrivals(&world).await;
    let first = posted(&world, "p", 1).await;
    answered(&world, &heard, &first).await;

    // Two replies wait, and the receipts are lost.
    let deliverer = world.stack.service("delivery-svc", 0).expect("it runs");
    deliverer.terminate();
    deliverer.ended(PATIENCE).await;
    let (second, third) = (posted(&world, "p", 2).await, posted(&world, "p", 3).await);

    eventually("two replies wait", PATIENCE, async || {
        match world
            .bus
            .stream_state(streams::DELIVERIES)
            .await
            .expect("asked")
            .messages
        {
            2 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;

    forget_receipts(&world).await;
    begin(&mut world, &["delivery-svc"]).await;

    let held = eventually("both are held", PATIENCE, async || {
        let listed = world.json(&["recover", "list"]).await;
        match listed.as_array().expect("a list").as_slice() {
            [one, other] => Ok([one, other].map(|held| held["id"].as_str().expect("an id").to_owned())),
            _ => Err(listed.to_string()),
        }
    })
    .await;

    let told = positions(&world, "delivery-svc-0").await.expect("it is told");
    assert!(told.starts_with("witness of RECEIPTS"), "{told}");

    let doctor = world.nexus(&["doctor", "--offline"]).await;
    assert!(
        doctor.out.contains("restored to an earlier state: RECEIPTS"),
        "{}",
        doctor.out
    );
    assert!(
        doctor.out.contains("2 messages (`nexus recover list`)"),
        "{}",
        doctor.out
    );

    for id in [&second, &third] {
        let told = traced(&world, id).await;
        let says_so = told
            .steps
            .iter()
            .any(|step| step.detail.contains("held until an operator decides"));
        assert!(!told.complete && says_so, "{told:#?}");
    }

    // What is new leaves meanwhile, what is done again arrives, and what is skipped does not.
    let fourth = posted(&world, "p", 4).await;
    answered(&world, &heard, &fourth).await;
    let [redone, skipped] = held;
    world.words(&["recover", "redo", &redone]).await;
    world.words(&["recover", "skip", &skipped]).await;
    answered(&world, &heard, &second).await;

    assert_eq!(world.json(&["recover", "list"]).await, serde_json::json!([]));

    for id in [&second, &third] {
        eventually("its trace is complete", PATIENCE, async || {
            let told = traced(&world, id).await;
            told.complete.then_some(()).ok_or_else(|| format!("{told:#?}"))
        })
        .await;
    }

    let unknown = world.tried(&["recover", "skip", "01M84AK0PVX2606425M07Z9QXA"]).await;
    assert!(unknown.expect_err("unknown").contains("nothing with id"));

    eventually("the positions hold again", PATIENCE, async || {
        match positions(&world, "delivery-svc-0").await {
            None => Ok(()),
            Some(told) => Err(told),
        }
    })
    .await;

    let times = heard.lock().expect("not poisoned").clone();
    assert!(!times.contains_key(&third), "{times:?}");
    assert!(times.len() == 3 && times.values().all(|times| *times == 1), "{times:?}");

    world.stack.stop().await;
}
