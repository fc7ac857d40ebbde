//! Copies of the read model: a few replicas keep one, the others ask them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use shared::model::event::Event;
use shared::model::invocation::HookOutcome;
use shared::process::status::{ReplicaStatus, ask_replicas};
use shared::testing::{TestProcess, eventually};
use shared::wire::headers::Headers;
use shared::wire::topology::streams::DISPATCHES;

use crate::world::{DEADLINE, World, event};

/// Fires only where its query finds the very event that it is called with.
pub(crate) const READS: &str = "import { Database } from 'bun:sqlite';
export default ({ event, dbPath }) => {
  const row = new Database(dbPath, { readonly: true }).query('SELECT count(*) AS n FROM events WHERE id = ?').get(event.id);
  if (row.n !== 1) throw new Error(`found ${row.n} times`);
  return { fire: true, routing: { session: event.peer.id } };
};
";

/// Fires only where its search finds the very event that it is called with.
const FINDS: &str = "export default async ({ event, search }) => {
  const found = await search(event.content);
  if (!found.some(({ eventId }) => eventId === event.id)) throw new Error(`found ${JSON.stringify(found)}`);
  return { fire: true, routing: { session: event.peer.id } };
};
";

/// Reads nothing.
pub(crate) const PLAIN: &str =
    "export default ({ event }) => ({ fire: true, routing: { session: 'plain-' + event.peer.id } });\n";

/// Publishes `count` events on forty conversations.
pub(crate) async fn publish(world: &World, from: u32, count: u32) {
    let events: Vec<_> = (from..from + count).map(numbered).collect();
    world.publish_all(&events).await;
}

/// Event `number` on one of forty conversations.
pub(crate) fn numbered(number: u32) -> Event {
    event(&format!("v{}", number % 40), number, "hello")
}

/// Every event fired both hooks, once each, and no hook failed. Returns the replicas that evaluated them.
pub(crate) async fn check(world: &World, events: u32) -> BTreeSet<String> {
    world.wait_for_records(u64::from(events)).await;
    world.wait_until_acked().await;
    eventually("every dispatch is stored", async || {
        world.dispatches().await.len() >= 2 * events as usize
    })
    .await;

    let dispatches = world.dispatches().await;
    let ids: BTreeSet<_> = dispatches.iter().map(|dispatch| dispatch.id).collect();
    assert_eq!(
        (dispatches.len(), ids.len()),
        (2 * events as usize, 2 * events as usize)
    );

    let records = world.invocations().await;
    for record in &records {
        for hook in &record.hooks {
            assert!(!matches!(hook.outcome, HookOutcome::Failed { .. }), "{record:?}");
        }
    }
    assert!(world.dead_letters().await.is_empty());
    records.into_iter().map(|record| record.evaluated_by).collect()
}

pub(crate) async fn world(copies: usize) -> World {
    let mut world = World::new(&[("reads.ts", READS), ("plain.ts", PLAIN)]).await;
    world.sections = format!("[hooks.read_model]\ncopies = {copies}\n");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_without_a_copy_ask_the_one_that_has_it() {
    let mut world = world(1).await;
    for name in ["h-0", "h-1", "h-2"] {
        world.start(name);
    }
    world.wait_for_members(3).await;
    publish(&world, 0, 300).await;

    let evaluated_by = check(&world, 300).await;
    assert_eq!(evaluated_by.len(), 3, "{evaluated_by:?}");
    assert!(world.read_model("h-0").exists());
    assert!(!world.read_model("h-1").exists() && !world.read_model("h-2").exists());

    // A repetition that the server no longer recognises is found by the copy, whoever evaluates it.
    let state = world
        .bus
        .stream_state(shared::wire::topology::streams::INVOCATIONS)
        .await
        .expect("its state");
    for number in 0..40 {
        world
            .publish_anonymously(&event(&format!("v{number}"), number, "hello"))
            .await;
    }
    world.wait_until_acked().await;
    assert_eq!(world.dispatches().await.len(), 600);
    let after = world
        .bus
        .stream_state(shared::wire::topology::streams::INVOCATIONS)
        .await
        .expect("its state");
    assert_eq!(after.messages, state.messages);

    // Operators' questions are answered by the copy alone.
    let asked = serde_json::json!({"name": "reads", "invocations": 5});
    let told = world.ask("get", asked).await.expect("told");
    assert_eq!(told["invocations"].as_array().map(Vec::len), Some(5), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_killed_or_frozen_is_answered_for_by_another() {
    let mut world = world(2).await;
    for name in ["h-0", "h-1", "h-2"] {
        world.start(name);
    }
    world.wait_for_members(3).await;
    publish(&world, 0, 100).await;
    world.wait_for_records(100).await;

    let frozen = world.replica("h-0").pid().to_string();
    signal(&frozen, "-STOP");
    publish(&world, 100, 100).await;
    dispatched(&world, 2 * 200).await;
    signal(&frozen, "-CONT");

    world.replica("h-1").kill();
    publish(&world, 200, 100).await;
    check(&world, 300).await;
}

/// Waits until `count` dispatches are stored.
pub(crate) async fn dispatched(world: &World, count: u64) {
    eventually(&format!("{count} dispatches"), async || {
        let state = world.bus.stream_state(DISPATCHES).await;
        state.is_ok_and(|state| state.messages >= count)
    })
    .await;
}

/// Begins to write to the file `MODEL`, creates the file `HELD`, and goes on for ever.
const HOLD: &str = "import { Database } from 'bun:sqlite';
const model = new Database(process.env.MODEL, { readwrite: true, create: false });
model.run('PRAGMA busy_timeout = 60000');
model.run('BEGIN IMMEDIATE');
await Bun.write(process.env.HELD, 'held');
// The timer keeps the process, and the process the transaction: what nothing names is closed.
setInterval(() => model.inTransaction, 1000);
";

/// Keeps the copy of replica `name` as it is, until the process is dropped: it answers, and falls behind its streams,
/// because nobody else can write to the file.
pub(crate) async fn hold_back(world: &World, name: &str) -> TestProcess {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/bun");
    let bun = if own.is_file() { own } else { "bun".into() };
    let script = world.write_file(&format!("hold-{name}.js"), HOLD);
    let held = script.with_extension("held");
    let mut command = Command::new(bun);
    command
        .arg("run")
        .arg(&script)
        .env("MODEL", world.read_model(name))
        .env("HELD", &held);

    let holding = TestProcess::start(&mut command);
    eventually("the file is held", async || held.exists()).await;
    holding
}

/// Sequence of the last event in the copy of replica `name`, as it tells others.
pub(crate) async fn position(world: &World, name: &str) -> Option<u64> {
    let subject = format!("nexus.svc.model.{name}.reached");
    let question = serde_json::json!({"beyond": 0});
    let told = world
        .bus
        .request::<_, serde_json::Value>(&subject, Headers::new(), &question, DEADLINE);
    told.await.ok()?["position"].as_u64()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_lags_is_answered_for_by_another() {
    let mut world = world(2).await;
    for name in ["h-0", "h-1", "h-2"] {
        world.start(name);
    }
    world.wait_for_members(3).await;
    publish(&world, 0, 100).await;

    // The replica without a copy asks one of the two first: each lags once.
    let mut events = 100;
    for lagging in ["h-0", "h-1"] {
        world.wait_for_records(u64::from(events)).await;
        eventually("both copies are at the last event", async || {
            let (one, other) = (position(&world, "h-0").await, position(&world, "h-1").await);
            (one, other) == (Some(u64::from(events)), Some(u64::from(events)))
        })
        .await;
        world.wait_for_members(3).await;
        assert!(!world.read_model("h-2").exists());

        let holding = hold_back(&world, lagging).await;
        let before = u64::from(events);
        publish(&world, events, 100).await;
        events += 100;

        // Nothing waits for the copy to catch up, and nothing is answered from it: each hook finds its own event.
        dispatched(&world, 2 * u64::from(events)).await;
        assert_eq!(position(&world, lagging).await, Some(before), "{lagging} lags");
        drop(holding);
    }

    let evaluated_by = check(&world, events).await;
    assert!(evaluated_by.contains("h-2"), "{evaluated_by:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_is_answered_by_a_copy_that_has_the_event() {
    let mut world = World::new(&[("finds.ts", FINDS), ("plain.ts", PLAIN)]).await;
    world.sections = "[hooks.read_model]\ncopies = 2\n".to_owned();
    for name in ["h-0", "h-1", "h-2"] {
        world.start(name);
    }
    world.wait_for_members(3).await;
    publish_words(&world, 0, 40).await;
    world.wait_for_records(40).await;

    // One copy lags and answers: an event that it does not know yet must not count as not there.
    let holding = hold_back(&world, "h-0").await;
    publish_words(&world, 40, 40).await;
    dispatched(&world, 2 * 80).await;
    drop(holding);

    // One copy is there and answers nothing.
    let frozen = world.replica("h-1").pid().to_string();
    signal(&frozen, "-STOP");
    publish_words(&world, 80, 40).await;
    dispatched(&world, 2 * 120).await;
    signal(&frozen, "-CONT");

    let evaluated_by = check(&world, 120).await;
    assert!(evaluated_by.contains("h-2"), "{evaluated_by:?}");
}

/// Publishes `count` events on forty conversations, each with a word of its own.
async fn publish_words(world: &World, from: u32, count: u32) {
    let events: Vec<_> = (from..from + count)
        .map(|number| event(&format!("v{}", number % 40), number, &format!("word{number}")))
        .collect();
    world.publish_all(&events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_only_copy_is_lost_another_replica_builds_one() {
    let mut world = world(1).await;
    world.start("h-0");
    world.start("h-1");
    world.wait_for_members(2).await;
    publish(&world, 0, 100).await;
    world.wait_for_records(100).await;
    assert!(!world.read_model("h-1").exists());

    world.replica("h-0").kill();
    publish(&world, 100, 100).await;
    check(&world, 200).await;
    assert!(world.read_model("h-1").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_may_keep_no_copy_takes_no_slot_even_if_it_is_the_first_and_the_last() {
    let mut world = world(1).await;
    let may_keep = world.sections.clone();
    world.sections = format!("{may_keep}keep = false\n");
    world.start("h-0");
    world.wait_for_members(1).await;
    publish(&world, 0, 100).await;

    // What needs no copy goes on; the rest waits for the replica that may keep one, whatever its number.
    eventually("what reads nothing is evaluated", async || {
        world.dispatches().await.len() >= 100
    })
    .await;
    assert!(!world.read_model("h-0").exists());
    loss_is_told(&world).await;

    world.sections = may_keep;
    world.start("h-7");
    world.wait_for_members(2).await;
    publish(&world, 100, 100).await;
    check(&world, 200).await;
    assert!(world.read_model("h-7").exists() && !world.read_model("h-0").exists());

    // And not when the slot becomes free either.
    world.replica("h-7").kill();
    publish(&world, 200, 100).await;
    eventually("what reads nothing is evaluated", async || {
        world.dispatches().await.len() >= 500
    })
    .await;
    assert!(!world.read_model("h-0").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_that_read_nothing_go_on_when_the_only_copy_is_killed_under_load() {
    // More evaluations than an author may have under way on one replica.
    const AT_ONCE: u32 = 800;
    let mut world = world(1).await;
    let may_keep = world.sections.clone();
    world.start("h-0");
    world.wait_for_members(1).await;
    world.sections = format!("{may_keep}keep = false\n");
    world.start("h-1");
    world.wait_for_members(2).await;
    publish(&world, 0, 40).await;
    world.wait_for_records(40).await;
    world.wait_until_acked().await;

    // They come before anybody can know that the copy is gone, so that the hook that reads waits for it.
    world.replica("h-0").kill();
    publish(&world, 40, AT_ONCE).await;
    dispatched(&world, u64::from(2 * 40 + AT_ONCE)).await;
    assert!(!world.read_model("h-1").exists());

    world.sections = may_keep;
    world.start("h-2");
    check(&world, 40 + AT_ONCE).await;
}

/// Says that it has begun, and fires some time later where its query finds the very event that it is called with.
const READS_LATE: &str = "import { Database } from 'bun:sqlite';
export default async ({ event, dbPath }) => {
  console.log('reading begins');
  await new Promise((done) => setTimeout(done, 2000));
  const row = new Database(dbPath, { readonly: true }).query('SELECT count(*) AS n FROM events WHERE id = ?').get(event.id);
  if (row.n !== 1) throw new Error(`found ${row.n} times`);
  return { fire: true, routing: { session: event.peer.id } };
};
";

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_was_reading_when_the_only_copy_went_has_not_failed_but_is_called_again() {
    let mut world = world(1).await;
    world.write_hook("reads.ts", READS_LATE);
    let may_keep = world.sections.clone();
    world.start("h-0");
    world.wait_for_members(1).await;
    world.sections = format!("{may_keep}keep = false\n");
    let log = world.write_file("h-1.log", "");
    world.log = Some(log.clone());
    world.start("h-1");
    world.wait_for_members(2).await;

    // Some of them are evaluated by the replica that goes on.
    publish(&world, 0, 40).await;
    eventually("the hook has begun", async || says(&log, "reading begins")).await;
    world.replica("h-0").kill();
    let tried_again = "a hook failed because no copy of the read model answers";
    eventually("it is tried again", async || says(&log, tried_again)).await;

    world.log = None;
    world.sections = may_keep;
    world.start("h-2");
    check(&world, 40).await;
}

fn says(log: &Path, what: &str) -> bool {
    std::fs::read_to_string(log).is_ok_and(|said| said.contains(what))
}

/// Waits until a replica says, as `/readyz`, `/metrics` and `nexus doctor` show it, that no copy answers it.
pub(crate) async fn loss_is_told(world: &World) {
    told_by(world, 1, "no copy of the read model").await;
}

/// Waits until `replicas` replicas say `text` of the read model, which does not answer them, as `/readyz`, `/metrics` and
/// `nexus doctor` show it.
pub(crate) async fn told_by(world: &World, replicas: usize, text: &str) {
    eventually(text, async || {
        let heard = ask_replicas(&world.bus, Duration::from_secs(3))
            .await
            .unwrap_or_default();
        let tells = |replica: &&ReplicaStatus| {
            let part = replica.parts.get("projection");
            let is_told = part.is_some_and(|part| part.degraded && part.detail.contains(text));
            is_told && replica.metrics.get("nexus_hook_read_model_answers") == Some(&0.0)
        };
        heard.iter().filter(tells).count() >= replicas
    })
    .await;
}

fn signal(pid: &str, signal: &str) {
    let sent = Command::new("kill").args([signal, pid]).status();
    assert!(sent.expect("a signal is sent").success());
}
