//! A backup that is made while intents change: what was copied of them earlier than their history is brought up to it,
//! each can still be changed and withdrawn, and each firing has one turn.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cli::launch::{SERVICES, keys};
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::clock::{IdSource as _, SystemIds};
use shared::model::dispatch::DeliveryContext;
use shared::model::intent::service::{
    CancelIntent, GetIntent, IntentAnswer, IntentHistory, IntentList, ListIntents, ProposeIntent, RescheduleIntent,
};
use shared::model::intent::{Intent, IntentRecord, IntentStatus, firing_of};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::Record;
use tests::world::{Setup, World};
use ulid::Ulid;

use crate::backup::flag;
use crate::intents::ask;
use crate::story::PATIENCE;

/// Recurring intents that get another time again and again.
const MOVED: u128 = 4;
/// Steps of each before the backup begins.
const STEPS_BEFORE: u32 = 4;
/// Intents that are about to fire, or have just fired, at any moment.
const FIRING: usize = 6;

/// Yearly, from a year in which none of this runs, at `minute`.
fn yearly(minute: u64) -> Value {
    json!({ "type": "rrule", "rule": "FREQ=YEARLY;COUNT=3", "start": format!("2035-01-01T00:{minute:02}"), "zone": "UTC" })
}

fn proposal(id: Ulid, schedule: &Value) -> ProposeIntent {
    let wish = json!({ "kind": "remind", "parameters": { "subject": id.to_string(), "message": "now" }, "schedule": schedule });
    ProposeIntent {
        id: Some(id),
        wish: serde_json::from_value(wish).expect("a wish"),
        agent: "default".to_owned(),
        session: "main".to_owned(),
        turn: None,
        permissions: PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        },
        delivery_context: DeliveryContext {
            channel: "nats".to_owned(),
            account_id: Some("e2e".to_owned()),
            peer_id: Some("p".to_owned()),
            ..DeliveryContext::default()
        },
        causation: None,
    }
}

fn moved(id: Ulid, minute: u64) -> RescheduleIntent {
    RescheduleIntent {
        id,
        schedule: serde_json::from_value(yearly(minute)).expect("a schedule"),
        agent: None,
        by: None,
        reason: "moved".to_owned(),
    }
}

const fn recurring(number: u128) -> Ulid {
    Ulid::from_parts(1, number)
}

/// The number of the last transition that `AUDIT` has of `intent`.
async fn audited(bus: &Bus, intent: &Intent) -> u32 {
    let subject = subject::intent_audit(&intent.intent.id.to_string());
    let last = bus.last_on_subject(streams::AUDIT, &subject).await.expect("AUDIT");
    last.map_or(0, |last| last.decode::<IntentRecord>().expect("a record").n)
}

/// The intents of KV, and how many of them are behind `AUDIT`.
async fn behind(bus: &Bus) -> (Vec<Intent>, usize) {
    let stored = bus
        .read_history("KV_intents", "$KV.intents.i.>", 1, 1_000)
        .await
        .expect("KV");
    let intents: Vec<Intent> = stored
        .iter()
        .map(|stored| stored.decode().expect("an intent"))
        .collect();
    let mut count = 0;
    for intent in &intents {
        count += usize::from(audited(bus, intent).await > intent.n);
    }

    (intents, count)
}

/// Makes a backup into `backup` of a world whose intents change and fire all the while; its key is kept beside it.
async fn copied_under_change(backup: &Path) {
    let world = World::start(Setup::default()).await;
    let stop = AtomicBool::new(false);
    for number in 0..MOVED {
        let answer: IntentAnswer = ask(&world.bus, "propose", &proposal(recurring(number), &yearly(0))).await;
        assert_eq!(answer.status, IntentStatus::Pending, "{answer:?}");
    }

    let moves = async |number: u128| {
        for minute in (1..60).cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let answer: IntentAnswer = ask(&world.bus, "reschedule", &moved(recurring(number), minute)).await;
            assert_eq!(answer.rejection, None);
        }
    };

    // One fires after another, a second after each was asked for.
    let fires = async |_| {
        while !stop.load(Ordering::Relaxed) {
            let (id, soon) = (SystemIds.ulid(), json!({ "type": "after", "seconds": 1 }));
            let answer: IntentAnswer = ask(&world.bus, "propose", &proposal(id, &soon)).await;
            assert_eq!(answer.rejection, None);
            has_ended(&world.bus, id).await;
        }
    };

    let copy = async {
        eventually("all have changed", PATIENCE, async || {
            let mut least = u32::MAX;
            for number in 0..MOVED {
                let own = GetIntent {
                    id: recurring(number),
                    agent: None,
                };
                let told: IntentHistory = ask(&world.bus, "get", &own).await;
                least = least.min(told.intent.n);
            }
            if least > STEPS_BEFORE {
                Ok(())
            } else {
                Err(least.to_string())
            }
        })
        .await;

        let made = world.tried(&["backup", flag(backup)]).await;
        stop.store(true, Ordering::Relaxed);
        made.expect("the backup is made");
    };

    let all_move = futures_util::future::join_all((0..MOVED).map(moves));
    let all_fire = futures_util::future::join_all((0..FIRING).map(fires));
    tokio::join!(copy, all_fire, all_move);

    let key = keys::cluster_key(world.path()).expect("a key");
    std::fs::copy(key, backup.with_extension("key")).expect("the key is kept");
}

async fn has_ended(bus: &Bus, id: Ulid) {
    eventually("it has fired", PATIENCE, async || {
        let told: IntentHistory = ask(bus, "get", &GetIntent { id, agent: None }).await;
        if told.intent.status == IntentStatus::Completed {
            Ok(())
        } else {
            Err(format!("{told:?}"))
        }
    })
    .await;
}

/// What the scheduler says of all intents that are at `status`.
async fn listed(bus: &Bus, status: IntentStatus) -> Vec<Intent> {
    let question = ListIntents {
        status: Some(status),
        limit: Some(200),
        ..ListIntents::default()
    };
    let list: IntentList = ask(bus, "list", &question).await;
    list.intents
}

#[tokio::test(flavor = "multi_thread")]
async fn intents_that_change_while_a_backup_runs_are_restored_to_where_their_history_is() {
    let files = tempfile::tempdir().expect("a directory");
    let backup = files.path().join("backup");
    copied_under_change(&backup).await;

    let mut world = World::start(Setup {
        backup: Some(backup.clone()),
        without: SERVICES.to_vec(),
        ..Setup::default()
    })
    .await;
    let (copied, count) = behind(&world.bus).await;
    assert!(
        count > 0,
        "the backup holds intents that are behind their history: {copied:#?}"
    );

    for name in SERVICES {
        world.stack.launch(name, 0).expect("it starts");
    }
    world.stack.ready().await.expect("everything comes up");

    // Those that were to fire have fired, and those that had fired are over.
    eventually("all that fire have ended", PATIENCE, async || {
        let (intents, behind) = behind(&world.bus).await;
        let fire = intents.iter().filter(|intent| !intent.intent.schedule.recurs());
        let open: Vec<_> = fire.filter(|intent| intent.status != IntentStatus::Completed).collect();
        if open.is_empty() && behind == 0 {
            Ok(())
        } else {
            Err(format!("{behind} behind, {open:#?}\n{}", world.logs()))
        }
    })
    .await;

    let record = Record::read(&world.bus).await;
    let mut turns = BTreeMap::<Ulid, usize>::new();
    for dispatch in record.turns().into_iter().flat_map(|(_, dispatches)| dispatches) {
        *turns.entry(dispatch).or_default() += 1;
    }
    let firings = record
        .dispatches
        .iter()
        .filter(|(_, dispatch)| firing_of(&dispatch.event_id).is_some());
    let firings: BTreeMap<Ulid, Ulid> = firings
        .filter_map(|(_, dispatch)| Some((dispatch.id, firing_of(&dispatch.event_id)?.0)))
        .collect();
    assert!(
        firings.keys().all(|dispatch| turns.get(dispatch) == Some(&1)),
        "{turns:?}"
    );
    let done = listed(&world.bus, IntentStatus::Completed).await;
    assert_eq!(done.len(), firings.len(), "each fired once");

    for number in 0..MOVED {
        changes_and_ends(&world, recurring(number)).await;
    }

    world.stack.stop().await;
}

/// The recurring intent `id` can get another time, and be withdrawn; its history has no gap.
async fn changes_and_ends(world: &World, id: Ulid) {
    let answer: IntentAnswer = ask(&world.bus, "reschedule", &moved(id, 59)).await;
    assert_eq!((answer.status, answer.rejection), (IntentStatus::Pending, None));

    let withdrawn = CancelIntent {
        id,
        agent: None,
        turn: None,
        by: Some("casey".to_owned()),
        reason: "no".to_owned(),
    };
    let answer: IntentAnswer = ask(&world.bus, "cancel", &withdrawn).await;
    assert_eq!(answer.status, IntentStatus::Canceled);

    let told: IntentHistory = ask(&world.bus, "get", &GetIntent { id, agent: None }).await;
    let numbers: Vec<u32> = told.history.iter().map(|record| record.n).collect();
    let expected: Vec<u32> = (1..=told.intent.n.min(1_000)).collect();
    assert_eq!(numbers, expected, "{told:#?}");
}
