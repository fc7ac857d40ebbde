//! Users that come and go while the server runs: what they may no longer do, and what nobody else notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cli::auth::folder::{AuthFolder, credentials_path};
use cli::auth::registry::{NewExpiry, UserState, WantedUser};
use cli::auth::{push_accounts, seconds_now};
use shared::bus::{Bus, NatsConfig, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::rights::BusRole;
use shared::wire::topology::streams;
use tempfile::TempDir;
use tests::wire_client::WireClient;

use super::bench::{EDGE, VIEWER, WalledServer};

/// Longest time that a message may take whose acknowledgement was on its way when its publisher's user was replaced.
const HEALED: Duration = Duration::from_secs(5);

/// Whether the server lets in who shows the credentials of `name`.
async fn is_let_in(walled: &WalledServer, name: &str) -> bool {
    WireClient::connect(&walled.server.url(), &walled.credentials(name))
        .await
        .is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_user_is_cut_off_and_stays_so_over_a_restart_with_the_former_configuration() {
    let mut walled = WalledServer::start().await;
    let mut connected = WireClient::connect(&walled.server.url(), &walled.credentials(VIEWER))
        .await
        .expect("a connection");

    walled.folder().revoke(VIEWER, seconds_now()).expect("revoked");
    assert!(connected.say("").await.is_ok(), "the server does not know of it");
    walled.push().await;
    eventually("the connection is ended", async || connected.say("").await.is_err()).await;
    assert!(!is_let_in(&walled, VIEWER).await);

    // The server's configuration still has the accounts as they were at first.
    walled.server.restart().await;
    assert!(!is_let_in(&walled, VIEWER).await);
    assert!(is_let_in(&walled, BusRole::Operator.name()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_folder_that_is_behind_undoes_no_revocation() {
    let walled = WalledServer::start().await;
    let copy = copy_of(&walled);

    walled.folder().revoke(VIEWER, seconds_now()).expect("revoked");
    walled.push().await;
    assert!(!is_let_in(&walled, VIEWER).await);

    // The copy knows nothing of it, and tells the servers of another change.
    let mut behind = AuthFolder::open(copy.path(), false).expect("the copy");
    behind.revoke(EDGE.0, seconds_now()).expect("revoked");
    push_accounts(&mut behind, &walled.config(BusRole::System.name()), seconds_now())
        .await
        .expect("told");
    assert!(!is_let_in(&walled, VIEWER).await && !is_let_in(&walled, EDGE.0).await);
    assert!(is_let_in(&walled, BusRole::Operator.name()).await);
    let viewer = behind.registry().user(VIEWER).expect("there");
    assert_eq!(viewer.state(seconds_now()), UserState::Revoked);
    drop(behind);

    // And the first folder learns of what the copy has done.
    walled.push().await;
    let folder = walled.folder();
    let edge = folder.registry().user(EDGE.0).expect("there");
    assert_eq!(edge.state(seconds_now()), UserState::Revoked);
}

/// Copies the folder of keys, as whoever reads it can.
fn copy_of(walled: &WalledServer) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(walled.keys.path().join("auth/."))
        .arg(copy.path())
        .status();
    assert!(copied.expect("cp runs").success());
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_key_of_a_role_makes_no_users_once_it_is_thrown_away() {
    let walled = WalledServer::start().await;
    let stolen = copy_of(&walled);
    let mut thief = AuthFolder::open(stolen.path(), false).expect("the copy");
    let wanted = WantedUser {
        name: "mallory".to_owned(),
        role: BusRole::Viewer,
        channel: None,
        personas: Vec::new(),
        expires: None,
    };
    thief.add(wanted, seconds_now()).expect("added");
    let forged = credentials_path(stolen.path(), "mallory");
    let mut connected = WireClient::connect(&walled.server.url(), &forged)
        .await
        .expect("the server believes the key of the role");

    std::fs::remove_file(walled.keys.path().join("auth/keys/roles/viewer.nk")).expect("thrown away");
    walled
        .folder()
        .rotate(VIEWER, seconds_now(), NewExpiry::AsBefore)
        .expect("rotated");
    walled.push().await;
    eventually("the connection is ended", async || connected.say("").await.is_err()).await;
    let again = WireClient::connect(&walled.server.url(), &forged).await;
    assert!(again.is_err(), "a user that nobody could revoke");
    assert!(is_let_in(&walled, VIEWER).await && is_let_in(&walled, BusRole::Operator.name()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_hears_the_questions_to_its_personas_alone() {
    let walled = WalledServer::start().await;
    for (name, personas) in [("one", &["shop"][..]), ("two", &["till", "desk"]), ("any", &[])] {
        let wanted = WantedUser {
            name: name.to_owned(),
            role: BusRole::Agent,
            channel: None,
            personas: personas.iter().map(|&persona| persona.to_owned()).collect(),
            expires: None,
        };
        walled.folder().add(wanted, seconds_now()).expect("added");

        let mut client = WireClient::connect(&walled.server.url(), &walled.credentials(name))
            .await
            .expect("a connection");
        for persona in ["shop", "till", "desk", "*"] {
            let heard = client.subscribe(&format!("nexus.agent.{persona}")).await;
            let allowed = personas.is_empty() || personas.contains(&persona);
            assert_eq!(heard, Ok(allowed), "{name} {persona}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_user_is_cut_off() {
    let walled = WalledServer::start().await;
    let wanted = WantedUser {
        name: "guest".to_owned(),
        role: BusRole::Viewer,
        channel: None,
        personas: Vec::new(),
        expires: Some(seconds_now() + 3),
    };
    walled.folder().add(wanted, seconds_now()).expect("added");
    let mut connected = WireClient::connect(&walled.server.url(), &walled.credentials("guest"))
        .await
        .expect("a connection");
    eventually("the connection is ended", async || connected.say("").await.is_err()).await;
    // Within the second of its end the token is still taken.
    eventually("no other is begun", async || !is_let_in(&walled, "guest").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_authority_is_not_believed() {
    let (walled, other) = (WalledServer::encrypted().await, WalledServer::encrypted().await);
    let right = walled.config(BusRole::Hook.name());
    let bus = walled.bus(BusRole::Hook).await;
    assert!(bus.is_connected());

    let wrong = NatsConfig {
        ca: other.config(BusRole::Hook.name()).ca,
        ..right.clone()
    };
    let refused = Bus::connect(&wrong, "wrong").await.expect_err("another authority");
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let none = NatsConfig {
        ca: String::new(),
        ..right
    };
    Bus::connect(&none, "none")
        .await
        .expect_err("no authority that the host knows");
}

/// Publishes one numbered message after the other until `stop`. Counts in `stored` what the server has acknowledged, and
/// returns the longest time that one took.
async fn load(bus: Bus, stored: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let number = stored.load(Ordering::Relaxed);
        let out = OutgoingMessage::raw("nexus.dlq.walls".to_owned(), Headers::new(), "{}".into());
        let begun = SystemClock.monotonic();
        bus.publish(out.msg_id(number.to_string())).await.expect("stored");
        longest = longest.max(SystemClock.monotonic().saturating_duration_since(begun));
        stored.store(number + 1, Ordering::Relaxed);
    }
    longest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_is_replaced_under_load_loses_nothing() {
    let mut walled = WalledServer::start().await.with_streams().await;
    let name = BusRole::Hook.name();
    let former = walled.keys.path().join("former.creds");
    std::fs::copy(walled.credentials(name), &former).expect("a copy");

    let bus = walled.bus(BusRole::Hook).await;
    let (stored, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let loading = tokio::spawn(load(bus.clone(), Arc::clone(&stored), Arc::clone(&stop)));
    let reaches = async |count: u64| {
        eventually("the load goes on", async || stored.load(Ordering::Relaxed) >= count).await;
    };
    reaches(100).await;

    for _ in 0..3 {
        let before = stored.load(Ordering::Relaxed);
        walled
            .folder()
            .rotate(name, seconds_now(), NewExpiry::AsBefore)
            .expect("rotated");
        reaches(before + 100).await;
        assert!(walled.folder().revoke_retired(name, seconds_now()).expect("revoked"));
        walled.push().await;
        let shown = WireClient::connect(&walled.server.url(), &former).await;
        assert!(shown.is_err(), "the former key is refused");
        reaches(stored.load(Ordering::Relaxed) + 100).await;
    }

    walled.server.restart().await;
    reaches(stored.load(Ordering::Relaxed) + 100).await;
    assert!(
        WireClient::connect(&walled.server.url(), &former).await.is_err(),
        "after a restart"
    );

    stop.store(true, Ordering::Relaxed);
    let longest = loading.await.expect("the load ends");
    let held = bus.stream_state(streams::DLQ).await.expect("the stream");
    assert_eq!(held.messages, stored.load(Ordering::Relaxed));
    println!("{} stored, the longest wait was {longest:?}", held.messages);
    assert!(longest < HEALED, "{longest:?}");
}
