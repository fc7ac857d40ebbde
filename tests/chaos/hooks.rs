//! hook-svc killed at random during sync, reload and evaluation, NATS now and then: no event is lost, no hook fires twice
//! for one event, a one-shot fires once, and every replica comes to what the directory says.
//!
//! Only hook-svc runs, with two replicas and one directory: dispatches are the witnesses, and nobody takes them.

mod authors;
mod files;
mod judge;
mod sender;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shared::clock::pause;
use shared::testing::model_server::{ModelServer, ScriptedAnswer};
use shared::wire::session_mark::PartitionFloors;
use shared::wire::topology::streams::EVENTS;
use shared::wire::topology::{PARTITIONS, buckets, partition_filter};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::killer::{Choices, kill_nats};
use crate::kills::{SETTLE, is_long};
use judge::Played;

const SERVICE: &str = "hook-svc";
/// How long a replica may take to take part again, on a busy machine.
const COMES_UP: Duration = Duration::from_secs(120);
/// How many of the first events occur once more, long after the server has forgotten or could have forgotten them.
const REPEATED: usize = 50;

/// Says to everybody who plays that it is over.
type Over = Arc<AtomicBool>;

fn is_over(over: &Over) -> bool {
    over.load(Ordering::Relaxed)
}

fn setup(model: &ModelServer, agents: &std::path::Path) -> Setup {
    let say = |key: &str, value: String| (format!("NEXUS__{key}"), value);
    Setup {
        replicas: 2,
        hooks: files::at_first(),
        without: vec!["adapter-svc", "broker-svc", "delivery-svc", "scheduler-svc"],
        environment: vec![
            say("LLM__PROVIDER", "openai".to_owned()),
            say("LLM__MODEL", "m".to_owned()),
            say("LLM__BASE_URL", model.base_url("openai")),
            say("LLM__PRICES__M__INPUT", "0".to_owned()),
            say("LLM__PRICES__M__OUTPUT", "0".to_owned()),
            say("HOOKS__AGENT_DIR", agents.display().to_string()),
        ],
        ..Setup::default()
    }
}

/// Kills a replica, sometimes with its read model, and starts it again; now and then the other one goes before this
/// one takes part, once: what is in hand at three unclean ends of its owner is given up, as promised, so that an event has to
/// have a chance in between.
async fn kill(world: &mut World, choices: &mut Choices, number: usize) {
    let replica = u16::try_from(choices.below(2)).unwrap_or(0);
    pause(Duration::from_millis(choices.below(700))).await;
    let running = world.stack.service(SERVICE, replica).expect("two replicas run");
    running.kill();

    if number % 4 == 3 {
        forget(world, replica);
    }

    world.stack.launch(SERVICE, replica).expect("it starts again");

    if number % 2 == 1 || choices.below(2) > 0 {
        ready(world, 0).await;
        ready(world, 1).await;
        settled(world).await;
    }
}

/// Waits until every event that is stored now is settled.
async fn settled(world: &World) {
    let floors = world.bus.kv::<PartitionFloors>(buckets::ATTEMPTS);
    let mut wanted: Vec<(usize, u64)> = Vec::new();
    for partition in 0..PARTITIONS {
        let subject = partition_filter(EVENTS, partition);
        let last = world.bus.last_on_subject(EVENTS, &subject).await.expect("readable");
        wanted.extend(last.map(|last| (usize::from(partition), last.sequence)));
    }

    eventually("what is in hand is settled", SETTLE, async || {
        let stored = floors.get("floors.hook").await.map_err(|error| error.to_string())?;
        let floors = stored.map(|entry| entry.value.floors).unwrap_or_default();
        let is_open = |(at, last): &&(usize, u64)| floors.get(*at).is_none_or(|floor| floor < last);
        let open: Vec<_> = wanted.iter().filter(is_open).collect();

        if open.is_empty() {
            Ok(())
        } else {
            Err(format!("{open:?} of {floors:?}"))
        }
    })
    .await;
}

/// Takes the replica's read model away.
fn forget(world: &World, replica: u16) {
    let data = world.path().join(format!("data/{SERVICE}-{replica}"));
    if let Err(error) = std::fs::remove_dir_all(&data) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", data.display());
    }
}

async fn ready(world: &mut World, replica: u16) {
    let running = world.stack.service(SERVICE, replica).expect("two replicas run");
    let came = running.ready(COMES_UP).await;
    came.unwrap_or_else(|error| panic!("{}: {error:#}\n{}", running.instance, running.log_tail()));
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_during_sync_reload_and_evaluation_costs_nothing() {
    let (kills, seed) = if is_long() { (60, 12) } else { (8, 11) };
    let mut choices = Choices::new(seed);
    let model = ModelServer::ruled(|_, number| ScriptedAnswer::text(&number.to_string())).await;
    let agents = tempfile::tempdir().expect("a folder");
    let mut world = World::start(setup(&model, agents.path())).await;
    let over = Over::default();
    let sending = tokio::spawn(sender::send(world.bus.clone(), Arc::clone(&over)));

    let editing = tokio::spawn(files::edit(world.path().join("hooks"), Arc::clone(&over)));
    let making = tokio::spawn(authors::make(world.bus.clone(), Arc::clone(&over)));
    let reusing = tokio::spawn(authors::reuse(world.bus.clone(), Arc::clone(&over)));

    for number in 0..kills {
        kill(&mut world, &mut choices, number).await;
        if number % (kills / 4) == kills / 8 {
            kill_nats(&mut world, &mut choices, 0).await;
        }
    }

    over.store(true, Ordering::Relaxed);
    world.stack.ready().await.expect("everything comes up again");
    let mut played = Played {
        sent: sending.await.expect("all was sent"),
        edits: editing.await.expect("all was edited"),
        made: making.await.expect("all was made"),
        lives: reusing.await.expect("all was made and deleted"),
    };

    // A replica that has read everything anew knows what occurred long ago.
    let running = world.stack.service(SERVICE, 1).expect("two replicas run");
    running.kill();
    forget(&world, 1);
    world.stack.launch(SERVICE, 1).expect("it starts again");
    ready(&mut world, 1).await;
    ready(&mut world, 0).await;
    sender::repeat(&world.bus, &played.sent[..REPEATED.min(played.sent.len())]).await;

    let newest = played.edits.len();
    let last = sender::until_all_say(&world, newest).await;
    played.sent.extend(last);

    let stale = eventually("every promise is kept", SETTLE, async || {
        let (faults, stale) = judge::faults(&world, agents.path(), &played).await;
        if faults.is_empty() {
            Ok(stale)
        } else {
            Err(format!("{}\n{}", faults.join("\n"), world.logs()))
        }
    })
    .await;

    println!(
        "{kills} kills of hook-svc and 4 of nats: {} events, {} hooks made, {} lives of one name, {newest} edits, \
         an edit was in force everywhere after {stale} ms at the latest; the model was asked {} times",
        played.sent.len(),
        played.made,
        played.lives,
        model.calls()
    );

    assert!(played.sent.len() > REPEATED && played.made > 0 && played.lives > 0);
}
