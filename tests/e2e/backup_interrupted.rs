//! Backups and restores that are killed half-way, or whose files are damaged.

use std::path::Path;

use serde_json::Value;
use shared::process::free_port;
use tests::command::{PATIENCE as COMMAND_PATIENCE, command, nexus, start};
use tests::eventually::eventually;

use crate::backup::flag;

/// Runs `nexus` with `arguments` and kills it once `there` exists, or lets it end before that.
async fn killed(here: &Path, arguments: &[&str], there: &Path) {
    let mut child = command(here, arguments).spawn().expect("it starts");
    loop {
        if there.exists() || child.try_wait().expect("its state").is_some() {
            break;
        }
        tokio::task::yield_now().await;
    }
    // It may have ended already.
    let _ = child.kill().await;
}

/// Puts the damaged backup `B` of `here` beside an older one: the newest is taken, and what else is there is named.
async fn the_others_are_named(here: &Path) {
    let nights = here.join("nights");
    std::fs::create_dir_all(nights.join("nexus-2026-11-26T03-17-00Z")).expect("a folder");
    std::fs::write(nights.join("nexus-2026-11-26T03-17-00Z/manifest.json"), "{}").expect("written");
    std::fs::rename(here.join("B"), nights.join("nexus-2026-11-27T03-17-00Z")).expect("moved");
    let damaged = nexus(here, &["restore", "nights/", "--data", "Z"]).await;

    let told = "nights/nexus-2026-11-26T03-17-00Z";
    assert!(
        damaged.code == Some(1) && damaged.err.contains("EVENTS.snapshot is damaged") && damaged.err.contains(told),
        "{damaged:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiesced_backup_is_of_one_moment_and_an_interrupted_one_begins_again() {
    let directory = tempfile::Builder::new()
        .prefix("nexus-test-")
        .tempdir()
        .expect("a directory");
    let here = directory.path();
    let ports = [0; 2].map(|_: u8| free_port().expect("a port").to_string());
    let up = ["up", "--nats-port", &ports[0], "--http-port", &ports[1]];
    let mut running = start(here, "up", &up);
    eventually("nexus up", COMMAND_PATIENCE, async || {
        let text = std::fs::read_to_string(here.join("up.out")).unwrap_or_default();
        if text.contains("nexus tail") { Ok(()) } else { Err(text) }
    })
    .await;

    killed(here, &["backup", "B"], &here.join("B/UNFINISHED")).await;
    let whole = here.join("B/manifest.json").exists();
    let early = nexus(here, &["restore", "B", "--data", "Y"]).await;

    assert_eq!(early.code == Some(0), whole, "{early:?}");
    assert!(whole || early.err.contains("has not ended"), "{early:?}");

    if whole {
        std::fs::remove_dir_all(here.join("B")).expect("removed");
        std::fs::remove_dir_all(here.join("Y")).expect("removed");
    }

    let made = nexus(here, &["backup", "B", "--quiesce", "--json"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");

    let manifest: Value = serde_json::from_str(&made.out).expect("JSON");
    assert_eq!(manifest["quiesced"], true);

    eventually("the services go on", COMMAND_PATIENCE, async || {
        let found = nexus(here, &["doctor", "--offline"]).await;
        if found.code == Some(0) {
            Ok(())
        } else {
            Err(format!("{}{}", found.out, found.err))
        }
    })
    .await;

    let down = nexus(here, &["down"]);
    let (down, ended) = tokio::join!(down, running.wait());
    assert!(down.code == Some(0) && ended.expect("it ran").success(), "{down:?}");

    let y = here.join("Y");
    let restore = ["restore", "B", "--data", flag(&y)];
    killed(here, &restore, &y.join("data/nats-0.restoring")).await;
    let again = nexus(here, &[&restore[..], &["--replace"]].concat()).await;

    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(!again.out.contains("is done again"), "{again:?}");

    let twice = nexus(here, &restore).await;
    assert!(twice.code == Some(5) && twice.err.contains("--replace"), "{twice:?}");

    // One bit of one file.
    let file = here.join("B/streams/EVENTS.snapshot");
    let mut bytes = std::fs::read(&file).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("written");
    let damaged = nexus(here, &["restore", "B", "--data", "Z"]).await;

    assert!(
        damaged.code == Some(1) && damaged.err.contains("EVENTS.snapshot is damaged"),
        "{damaged:?}"
    );
    assert!(!here.join("Z").exists(), "nothing was made");
    the_others_are_named(here).await;
}
