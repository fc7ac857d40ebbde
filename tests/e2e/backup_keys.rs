//! A backup that is made while keys and files are replaced: each has the value from before, or a later one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cli::launch::{SERVICES, keys};
use shared::bus::{Bus, OutgoingMessage};
use shared::wire::headers::Headers;
use shared::wire::topology::{buckets, objects};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::backup::flag;
use crate::story::PATIENCE;

/// Keys that are replaced again and again, of each bucket.
const KEYS: usize = 3;
/// Values of each key before the backup begins.
const BEFORE: u64 = 50;

/// Subjects on which one message replaces another.
fn subjects() -> Vec<String> {
    let of_bucket = |bucket: &str| (0..KEYS).map(|key| format!("$KV.{bucket}.k{key}")).collect::<Vec<_>>();
    let mut all: Vec<String> = [buckets::HOOK_STATE, buckets::SESSION_OVERRIDES, buckets::APPROVALS]
        .iter()
        .flat_map(|bucket| of_bucket(bucket))
        .collect();
    all.push(format!("$O.{}.M.file", objects::ATTACHMENTS));
    all
}

/// Replaces the message on `subject` by one with the next number until `stop`. `stored` has what the server has acked.
async fn replaces(bus: &Bus, subject: &str, stored: &Mutex<BTreeMap<String, u64>>, stop: &AtomicBool) {
    for number in 1.. {
        let mut headers = Headers::new();
        if subject.starts_with("$O.") {
            headers.insert("Nats-Rollup", "sub");
        }
        let out = OutgoingMessage::raw(subject.to_owned(), headers, number.to_string().into());
        bus.publish(out).await.expect("stored");
        stored.lock().expect("not poisoned").insert(subject.to_owned(), number);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// Makes a backup into `backup` while all subjects are written. Returns what was stored before it began.
async fn copied_under_change(backup: &Path) -> BTreeMap<String, u64> {
    let world = World::start(Setup {
        without: SERVICES.to_vec(),
        ..Setup::default()
    })
    .await;
    let (stored, stop) = (Mutex::new(BTreeMap::new()), AtomicBool::new(false));
    let subjects = subjects();
    let all_replace = subjects
        .iter()
        .map(|subject| replaces(&world.bus, subject, &stored, &stop));

    let copies = async {
        eventually("all are replaced", PATIENCE, async || {
            let stored = stored.lock().expect("not poisoned");
            if stored.len() == subjects.len() && stored.values().all(|number| *number >= BEFORE) {
                return Ok(());
            }
            Err(format!("{stored:?}"))
        })
        .await;
        let before = stored.lock().expect("not poisoned").clone();
        let made = world.tried(&["backup", flag(backup)]).await;
        stop.store(true, Ordering::Relaxed);
        made.expect("the backup is made");
        before
    };

    let (_, before) = tokio::join!(futures_util::future::join_all(all_replace), copies);
    let key = keys::cluster_key(world.path()).expect("a key");
    std::fs::copy(key, backup.with_extension("key")).expect("the key is kept");
    before
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_replaced_while_a_backup_is_made_is_restored_with_its_value_or_a_later_one() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    let before = copied_under_change(&backup).await;

    let world = World::start(Setup {
        backup: Some(backup),
        without: SERVICES.to_vec(),
        ..Setup::default()
    })
    .await;
    for (subject, number) in before {
        let mut parts = subject.split('.');
        let prefix = if parts.next() == Some("$O") { "OBJ" } else { "KV" };
        let stream = format!("{prefix}_{}", parts.next().expect("a bucket"));
        let last = world.bus.last_on_subject(&stream, &subject).await.expect("the stream");
        let last = last.unwrap_or_else(|| panic!("{subject} is lost, which was at {number}"));
        let restored: u64 = String::from_utf8_lossy(&last.payload).parse().expect("a number");
        assert!(restored >= number, "{subject} is at {restored}, and was at {number}");
    }
    world.stack.stop().await;
}
