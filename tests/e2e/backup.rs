//! A backup that is made while work goes on, put onto an empty server: nothing is left out, and what may have been sent
//! before waits for the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cli::launch::{SERVICES, keys};
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::EventDirection;
use shared::model::receipt::ReceiptStep;
use shared::model::restore::{HOLD_KEY, HoldDecision, RestoreHold};
use shared::process::status::ask_replicas;
use shared::wire::headers::CAUSATION;
use shared::wire::topology::{buckets, streams};
use tests::eventually::eventually;
use tests::record::Record;
use tests::world::{Setup, World, token, without_ticks};

use crate::story::{ANSWER, PATIENCE, event, send};

/// Conversations under load.
const CONVERSATIONS: u64 = 4;
/// Events that are handled before the backup begins.
const BEFORE: usize = 24;
/// How long replicas may take to say how they are.
pub(crate) const REPLICAS_WITHIN: Duration = Duration::from_secs(5);
/// What the ids of events end with that are sent after a decision.
const NEW: &str = "afterwards";

pub(crate) fn setup() -> Setup {
    Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        environment: vec![without_ticks()],
        ..Setup::default()
    }
}

/// How often something arrived on channel `nats`, by the event that it answers.
pub(crate) type Heard = Arc<Mutex<BTreeMap<String, usize>>>;

/// Listens as the receiver does, from now on.
pub(crate) async fn arrivals(world: &World) -> Heard {
    let heard = Heard::default();
    let mut parts = world.bus.core_subscribe("nexus.out.e2e.>").await.expect("subscribed");
    world.bus.flush().await.expect("the server knows of it");
    let kept = Arc::clone(&heard);

    tokio::spawn(async move {
        while let Some(part) = parts.next().await {
            let answers = part.headers.get(CAUSATION).expect("it says what it answers").to_owned();
            *kept.lock().expect("not poisoned").entry(answers).or_default() += 1;
        }
    });

    heard
}

/// The events whose answers arrived.
pub(crate) fn arrived(heard: &Heard) -> BTreeSet<String> {
    heard.lock().expect("not poisoned").keys().cloned().collect()
}

/// Received events, and those of them that a receipt says are answered.
fn stands(record: &Record) -> (BTreeSet<String>, BTreeSet<String>) {
    let received = record
        .events
        .iter()
        .filter(|(_, event)| event.direction == EventDirection::Received);
    let received = received.map(|(_, event)| event.id.as_str().to_owned()).collect();
    let delivered = record
        .receipts
        .iter()
        .filter(|(_, receipt)| matches!(receipt.step, ReceiptStep::Delivered { .. }));

    let delivered = delivered
        .map(|(_, receipt)| receipt.causation.event.as_str().to_owned())
        .collect();
    (received, delivered)
}

/// A backup that was made under load, and what was known when it was made.
struct Copied {
    /// Events that were in the stream before it was begun.
    received: BTreeSet<String>,
    /// Those of them that were answered before it was begun.
    delivered: BTreeSet<String>,
    /// Events whose answers had arrived when it was ended.
    first: BTreeSet<String>,
}

/// Makes a backup into `backup` of a world under load, which ends then; its key is kept beside it.
async fn copied_under_load(backup: &Path) -> Copied {
    let world = World::start(setup()).await;
    let heard = arrivals(&world).await;
    let (stop, number) = (AtomicBool::new(false), AtomicU64::new(0));

    let load = async |conversation: u64| {
        while !stop.load(Ordering::Relaxed) {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let peer = format!("p{conversation}");
            send(&world, &event(&format!("e2e:{peer}/{number}"), &peer, "hello")).await;
        }
    };

    let copy = async {
        let before = eventually("some are answered", PATIENCE, async || {
            let (received, delivered) = stands(&Record::read(&world.bus).await);
            if delivered.len() >= BEFORE {
                Ok((received, delivered))
            } else {
                Err(format!("{} of {BEFORE}", delivered.len()))
            }
        })
        .await;

        let made = world.tried(&["backup", flag(backup)]).await;
        stop.store(true, Ordering::Relaxed);
        made.expect("the backup is made");

        before
    };

    let all = async {
        let loads = (0..CONVERSATIONS).map(&load);
        futures_util::future::join_all(loads).await;
    };

    let ((received, delivered), ()) = tokio::join!(copy, all);
    let first = arrived(&heard);
    assert!(first.len() >= BEFORE, "the receiver hears what is delivered: {first:?}");

    let key = keys::cluster_key(world.path()).expect("a key");
    std::fs::copy(key, backup.with_extension("key")).expect("the key is kept");

    Copied {
        received,
        delivered,
        first,
    }
}

/// Puts `backup` onto an empty server; the receiver listens before any service runs.
async fn restored(backup: &Path) -> (World, Heard) {
    let mut world = World::start(Setup {
        backup: Some(backup.to_owned()),
        without: SERVICES.to_vec(),
        ..setup()
    })
    .await;

    let heard = arrivals(&world).await;

    for name in SERVICES.into_iter().filter(|name| !setup().without.contains(name)) {
        world.stack.launch(name, 0).expect("it starts");
    }

    world.stack.ready().await.expect("everything comes up");
    (world, heard)
}

/// Puts `backup` onto an empty server, decides with `word`, and sees that what is new is answered. Returns the events whose
/// answers waited, and those whose answers arrived.
async fn decided(backup: &Path, copied: &Copied, word: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut world, heard) = restored(backup).await;
    let held = settled(&world, copied).await;
    assert_eq!(arrived(&heard), BTreeSet::new(), "nothing of the backup leaves unasked");

    forgets_its_restore(&mut world).await;
    assert_eq!(settled(&world, copied).await, held, "what waits still waits");
    assert_eq!(arrived(&heard), BTreeSet::new(), "a record that is gone is no decision");

    world.words(&["restore", word]).await;
    let list = world.tried(&["restore", "--list"]).await.expect("listed");
    assert!(list.contains("0 deliveries are held"), "{list}");

    for peer in ["p0", "somebody-new"] {
        answers_anew(&world, &heard, peer).await;
    }

    eventually("the queue is worked off", PATIENCE, async || {
        let parked = world.bus.stream_state(streams::PARKED).await.expect("asked").messages;
        let waiting = world
            .bus
            .stream_state(streams::DELIVERIES)
            .await
            .expect("asked")
            .messages;

        if parked + waiting == 0 {
            Ok(())
        } else {
            Err(format!("{parked} parked, {waiting} waiting\n{}", world.logs()))
        }
    })
    .await;

    let times = heard.lock().expect("not poisoned").clone();
    assert!(times.values().all(|times| *times == 1), "{word}: {times:?}");

    world.stack.stop().await;
    (held, times.into_keys().filter(|id| !id.ends_with(NEW)).collect())
}

/// Takes away the record of the restore, and begins delivery-svc anew.
async fn forgets_its_restore(world: &mut World) {
    let holds = world.bus.kv::<RestoreHold>(buckets::RESTORE);
    holds.delete(HOLD_KEY, None).await.expect("the record is gone");

    world.stack.service("delivery-svc", 0).expect("it runs").kill();
    world.stack.launch("delivery-svc", 0).expect("it starts again");
    eventually(
        "delivery-svc holds again what may have been made",
        PATIENCE,
        async || match holds.get(HOLD_KEY).await {
            Ok(Some(hold)) if hold.value.decision == HoldDecision::Waiting => Ok(()),
            other => Err(format!("{other:?}\n{}", world.logs())),
        },
    )
    .await;
}

/// Sends a new event in the conversation of `peer`, whose answer must arrive.
async fn answers_anew(world: &World, heard: &Heard, peer: &str) {
    let id = format!("e2e:{peer}/{NEW}");
    let mut new = event(&id, peer, "hello again");
    new["timestamp"] = SystemClock.now().0.into();
    send(world, &new).await;

    eventually("what is new is answered", PATIENCE, async || {
        if arrived(heard).contains(&id) {
            Ok(())
        } else {
            Err(format!("{id}\n{}", world.logs()))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_loses_nothing_and_repeats_nothing_unasked() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    let copied = copied_under_load(&backup).await;

    let (held, sent) = decided(&backup, &copied, "--drop").await;
    assert_eq!(sent, BTreeSet::new(), "{held:?} do not leave");
    let (held, sent) = decided(&backup, &copied, "--send").await;
    assert!(sent.is_subset(&held), "{sent:?} of {held:?}");

    // EVENTS is copied after RECEIPTS: the event of a sent part is evidence that its answer had arrived before.
    let kept: Vec<&String> = held.difference(&sent).collect();
    assert!(
        kept.iter().all(|id| copied.first.contains(*id)),
        "what waited leaves, once each: {kept:?}"
    );
}

/// Waits until everything is handled as far as it goes unasked; returns the events whose answers wait. Of those that had
/// arrived before, some are known to be done by the ledger alone: they are neither repeated nor listed.
async fn settled(world: &World, copied: &Copied) -> BTreeSet<String> {
    let Copied {
        received,
        delivered,
        first,
    } = copied;
    let held = eventually("everything is handled or waits", PATIENCE, async || {
        let record = Record::read(&world.bus).await;
        let (restored, answered) = stands(&record);
        let listed = world.json(&["restore", "--list"]).await;

        let held: BTreeSet<String> = listed
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|one| one["event"].as_str().map(str::to_owned))
            .collect();

        let open: Vec<&String> = restored.iter().filter(|id| !answered.contains(*id)).collect();
        let turns: usize = record.turns().iter().map(|(_, dispatches)| dispatches.len()).sum();
        let is_idle = record.claims == 0 && record.waiting == 0 && turns == restored.len();
        if is_idle && open.iter().all(|id| held.contains(*id) || first.contains(*id)) {
            Ok((restored, held))
        } else {
            let log = world.logs();
            Err(format!(
                "{} open, {} held, {turns} of {} turns, {} claims, {} waiting\n{log}",
                open.len(),
                held.len(),
                restored.len(),
                record.claims,
                record.waiting
            ))
        }
    })
    .await;

    let (restored, held) = held;
    assert!(
        received.is_subset(&restored),
        "every event that was stored before is there"
    );
    assert!(
        held.is_disjoint(delivered),
        "what was done before the backup began is not done again"
    );

    held
}

/// A load that counts what is accepted, until the gateway refuses.
async fn accepted_until_refused(gateway: String, stop: &AtomicBool) -> BTreeSet<String> {
    let client = cli::http::client().expect("an HTTP client");
    let load = async |conversation: u64| {
        let (peer, mut accepted) = (format!("p{conversation}"), BTreeSet::new());
        for number in 0_u64.. {
            let id = format!("e2e:{peer}/{number}");
            let posted = client.post(format!("{gateway}/v1/events")).bearer_auth(token("e2e"));
            let answer = posted.json(&event(&id, &peer, "hello")).send().await;
            match answer {
                Ok(answer) if answer.status().is_success() => drop(accepted.insert(id)),
                Ok(_) | Err(_) if stop.load(Ordering::Relaxed) => break,
                Ok(answer) => panic!("{}", answer.status()),
                Err(error) => panic!("{error}"),
            }
        }

        accepted
    };

    let all = futures_util::future::join_all((0..CONVERSATIONS).map(load)).await;
    all.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_at_a_standstill_restores_to_exactly_once_and_nothing_waits() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    let mut world = World::start(setup()).await;
    let before = arrivals(&world).await;
    let running = world.tried(&["backup", flag(&backup), "--quiesce"]).await;
    let refused = running.expect_err("services run");

    assert!(refused.contains("stop adapter-svc-0, "), "{refused}");

    // Under load, from which the services are taken away.
    let (stop, gateway) = (AtomicBool::new(false), world.gateway());
    let stopping = async {
        eventually("some are answered", PATIENCE, async || {
            let answered = arrived(&before).len();
            if answered >= BEFORE {
                Ok(())
            } else {
                Err(answered.to_string())
            }
        })
        .await;

        stop.store(true, Ordering::Relaxed);

        for running in &mut world.stack.services {
            running.terminate();
        }
    };

    let (accepted, ()) = tokio::join!(accepted_until_refused(gateway, &stop), stopping);
    world.stack.stop_services().await;
    world.words(&["backup", flag(&backup), "--quiesce"]).await;
    let key = keys::cluster_key(world.path()).expect("a key");
    std::fs::copy(key, backup.with_extension("key")).expect("the key is kept");
    let mut times = before.lock().expect("not poisoned").clone();
    drop(world);

    let (world, after) = restored(&backup).await;
    answers_anew(&world, &after, "p0").await;
    eventually("all that was accepted is answered", PATIENCE, async || {
        let mut all = times.clone();
        for (id, more) in after.lock().expect("not poisoned").iter() {
            *all.entry(id.clone()).or_default() += more;
        }

        let open = accepted.iter().filter(|id| !all.contains_key(*id)).count();
        if open == 0 {
            Ok(all)
        } else {
            Err(format!("{open} of {}\n{}", accepted.len(), world.logs()))
        }
    })
    .await;

    quiet(&world).await;

    for (id, more) in after.lock().expect("not poisoned").iter() {
        *times.entry(id.clone()).or_default() += more;
    }

    assert!(times.values().all(|times| *times == 1), "{times:?}");

    nothing_is_left_to_decide(&world).await;
    world.stack.stop().await;
}

/// Waits until nothing is under way.
async fn quiet(world: &World) {
    eventually("nothing is under way", PATIENCE, async || {
        let record = Record::read(&world.bus).await;
        if record.claims + record.waiting == 0 {
            Ok(())
        } else {
            Err(format!("{} claims, {} waiting", record.claims, record.waiting))
        }
    })
    .await;
}

/// Nothing is held, no delivery waits, and every replica counts with positions that hold.
async fn nothing_is_left_to_decide(world: &World) {
    assert_eq!(world.json(&["recover", "list"]).await, serde_json::json!([]));

    let list = world.tried(&["restore", "--list"]).await.expect("listed");
    assert!(list.contains("0 deliveries are held"), "{list}");

    let replicas = ask_replicas(&world.bus, REPLICAS_WITHIN).await.expect("asked");
    assert_eq!(replicas.len(), 5, "{replicas:?}");

    for replica in replicas {
        assert!(replica.ready, "{replica:?}");
        assert_eq!(replica.parts.get("positions"), None, "{}", replica.instance);
        let void = replica.metrics.get("nexus_positions_void_total").copied();
        assert_eq!(void.unwrap_or_default(), 0.0, "{}", replica.instance);
    }
}

pub(crate) fn flag(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
