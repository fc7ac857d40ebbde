//! A backup that is made while timers are set, replaced and withdrawn: each is restored once, as it was when the backup
//! began or later, none that was withdrawn before comes back, and one that is due fires.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cli::launch::{SERVICES, keys};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::SCHEDULES;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::backup::flag;
use crate::story::PATIENCE;

/// Timers that are replaced again and again.
const REPLACED: usize = 3;
/// Timers that are set and withdrawn in turn.
const WITHDRAWN: usize = 3;
/// Rounds of each before the backup begins.
const BEFORE: u64 = 40;
/// Time of a timer that does not fire here.
const NEVER: &str = "@at 2099-01-01T00:00:00Z";
/// Timer that is due while the backup is made or restored, or soon after.
const DUE: &str = "due";
/// Time until it is due, in milliseconds.
const DUE_IN_MS: i64 = 20_000;

fn timer(id: &str, when: &str, number: u64) -> OutgoingMessage {
    let mut headers = Headers::new();
    headers.insert("Nats-Schedule", when);
    headers.insert("Nats-Schedule-Target", subject::fire(id));
    headers.insert("Nats-Schedule-TTL", "604800s");
    OutgoingMessage::raw(subject::schedule(id), headers, number.to_string().into())
}

/// What is done with timers, until it is stopped.
#[derive(Debug, Default)]
struct Rounds {
    /// Last number with which each timer was set, or set and withdrawn, as far as the server has acked it.
    done: Mutex<BTreeMap<String, u64>>,
    stop: AtomicBool,
}

impl Rounds {
    fn note(&self, id: &str, number: u64) -> bool {
        self.done.lock().expect("not poisoned").insert(id.to_owned(), number);
        self.stop.load(Ordering::Relaxed)
    }

    async fn replace(&self, bus: &Bus, id: &str) {
        for number in 1.. {
            bus.publish(timer(id, NEVER, number)).await.expect("stored");
            if self.note(id, number) {
                break;
            }
        }
    }

    async fn withdraw(&self, bus: &Bus, id: &str) {
        for number in 1.. {
            let set = bus.publish(timer(id, NEVER, number)).await.expect("stored").sequence;
            assert!(bus.delete_message(SCHEDULES, set).await.expect("asked"), "{id} was set");
            if self.note(id, number) {
                break;
            }
        }
    }
}

fn replaced() -> Vec<String> {
    (0..REPLACED).map(|number| format!("replaced-{number}")).collect()
}

fn withdrawn() -> Vec<String> {
    (0..WITHDRAWN).map(|number| format!("withdrawn-{number}")).collect()
}

/// Makes a backup into `backup` while all timers change. Returns the rounds of each before it began.
async fn copied_under_change(backup: &Path) -> BTreeMap<String, u64> {
    let world = World::start(Setup {
        without: SERVICES.to_vec(),
        ..Setup::default()
    })
    .await;
    let rounds = Rounds::default();
    let bus = &world.bus;
    let (replaced, withdrawn) = (replaced(), withdrawn());
    let replacing = replaced.iter().map(|id| rounds.replace(bus, id));
    let withdrawing = withdrawn.iter().map(|id| rounds.withdraw(bus, id));

    let copies = async {
        eventually("all change", PATIENCE, async || {
            let done = rounds.done.lock().expect("not poisoned");
            if done.len() == REPLACED + WITHDRAWN && done.values().all(|number| *number >= BEFORE) {
                return Ok(());
            }
            Err(format!("{done:?}"))
        })
        .await;

        let due = SystemClock.now().plus(DUE_IN_MS).to_rfc3339();
        bus.publish(timer(DUE, &format!("@at {due}"), 1)).await.expect("stored");
        let before = rounds.done.lock().expect("not poisoned").clone();
        let made = world.tried(&["backup", flag(backup)]).await;
        rounds.stop.store(true, Ordering::Relaxed);
        made.expect("the backup is made");
        before
    };

    let (_, _, before) = tokio::join!(
        futures_util::future::join_all(replacing),
        futures_util::future::join_all(withdrawing),
        copies
    );
    let key = keys::cluster_key(world.path()).expect("a key");
    std::fs::copy(key, backup.with_extension("key")).expect("the key is kept");
    before
}

/// The number with which the timer `id` is set.
async fn number(bus: &Bus, id: &str) -> Option<u64> {
    let last = bus.last_on_subject(SCHEDULES, &subject::schedule(id)).await;
    let last = last.expect("the stream is asked")?;
    assert_eq!(last.headers.get("Nats-Schedule"), Some(NEVER), "{id} is a timer");
    Some(String::from_utf8_lossy(&last.payload).parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_that_change_while_a_backup_is_made_are_restored_as_they_were_then_or_later() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    let before = copied_under_change(&backup).await;

    let world = World::start(Setup {
        backup: Some(backup),
        without: SERVICES.to_vec(),
        ..Setup::default()
    })
    .await;
    let bus = &world.bus;

    for id in replaced() {
        let restored = number(bus, &id).await.unwrap_or_else(|| panic!("{id} is lost"));
        assert!(restored >= before[&id], "{id} is at {restored}, was at {}", before[&id]);
    }
    for id in withdrawn() {
        // It may have been set for a moment after the backup began.
        let restored = number(bus, &id).await;
        let is_later = restored.is_none_or(|restored| restored > before[&id]);
        assert!(
            is_later,
            "{id} is at {restored:?}, and was withdrawn up to {}",
            before[&id]
        );
    }

    // Each place has one timer, and the one that is due fires: twice at most, if it was due between its copy and now.
    eventually("what is due has fired", PATIENCE, async || {
        let stored = bus.list_subjects(SCHEDULES, ">").await.expect("listed");
        let (set, fired): (Vec<_>, Vec<_>) = stored
            .iter()
            .partition(|(subject, _)| subject.starts_with("nexus.schedule."));
        assert!(set.iter().all(|(_, count)| **count == 1), "{set:?}");

        let is_set = stored.contains_key(&subject::schedule(DUE));
        match fired.as_slice() {
            [(subject, 1..=2)] if **subject == subject::fire(DUE) && !is_set => Ok(()),
            _ => Err(format!("{stored:?}")),
        }
    })
    .await;
    world.stack.stop().await;
}
