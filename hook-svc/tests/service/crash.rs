//! A replica is killed between a dispatch and its event's record.

use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use shared::breaker::{Breaker, BreakerState};
use shared::model::event::EventDirection;
use shared::model::invocation::HookOutcome;
use shared::model::time::UnixMillis;
use shared::schedule::book::ScheduleBook;
use shared::testing::eventually;
use shared::testing::model_server::{ModelServer, ScriptedAnswer};
use shared::wire::session_mark::PartitionFloors;
use shared::wire::topology::buckets;

use crate::world::{World, event, of};

/// Goes where the model says; it says otherwise each time.
const ASKS: &str =
    "export default async ({ llm }) => ({ fire: true, routing: { session: await llm('where to?') } });\n";

/// Fires once, with something of chance in it.
const ONCE: &str = "/** @mode one-shot */
export default () => ({ fire: true, routing: { session: `once-${Math.random()}` } });\n";
const ONCE_BODY: &str = "export default () => ({ fire: true, routing: { session: `once-${Math.random()}` } });\n";

/// Keeps the event open, so that there is no record yet.
const SLOW: &str = "/** @timeout 60s */
export default async () => { await new Promise((resolve) => setTimeout(resolve, 20000)); return { fire: false }; };\n";

/// The configuration of a replica that asks `model`.
fn model_section(model: &ModelServer) -> String {
    let url = model.base_url("openai");
    format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"m\"\nprices.m = {{ input = 0, output = 0 }}\nbase_url = \"{url}\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_model_and_one_shots_count_as_they_were_first() {
    let model = ModelServer::ruled(|_, number| ScriptedAnswer::text(&format!("answer-{number}"))).await;
    let mut world = World::new(&[("asks.ts", ASKS), ("once.ts", ONCE), ("slow.ts", SLOW)]).await;
    world.sections = model_section(&model);
    world.start("a");
    world.wait_for_members(1).await;
    let happens = event("v1", 1, "hello");
    world.publish(&happens).await;
    eventually("both dispatches are there", async || {
        world.dispatches().await.len() == 2
    })
    .await;

    assert!(
        world.invocations().await.is_empty(),
        "the slow hook has not answered yet"
    );

    // The next owner need not wait as long.
    world.replica("a").kill();
    world.write_hook("slow.ts", &SLOW.replace("20000", "1"));
    let sessions = |dispatches: Vec<shared::model::dispatch::Dispatch>| {
        let mut sessions: Vec<String> = dispatches.into_iter().map(|dispatch| dispatch.target.session).collect();
        sessions.sort();
        sessions
    };

    let first = sessions(world.dispatches().await);
    assert_eq!(first[0], "answer-0");

    world.start("b");
    let record = world.record(&happens).await;
    assert_eq!(record.evaluated_by, "b");
    assert_eq!(
        sessions(world.dispatches().await),
        first,
        "nothing is dispatched otherwise"
    );
    assert_eq!(model.calls(), 1, "the model is not asked again");

    let fired: Vec<&str> = record.hooks.iter().map(|hook| hook.hook_id.as_str()).collect();
    assert_eq!(fired, ["asks", "once"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_a_record_is_shown_to_no_hook_again_and_the_rest_of_a_backlog_is() {
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("no")).await;
    let passes = "export default async ({ llm }) => { await llm('well?'); return { fire: false }; };\n";
    let mut world = World::new(&[("passes.ts", passes)]).await;
    world.sections = model_section(&model);
    world.start("a");
    world.wait_for_members(1).await;

    for number in 0..20 {
        world
            .publish(&event(&format!("v{}", number % 5), number, "hello"))
            .await;
    }

    world.wait_for_records(20).await;
    assert_eq!(model.calls(), 20);

    world.replica("a").kill();
    // As if it had been killed before it stored how far it was: everything comes again.
    let floors = world.bus.kv::<PartitionFloors>(buckets::ATTEMPTS);
    let none = PartitionFloors::default();
    floors.put("floors.hook", &none).await.expect("stored");

    for number in 20..30 {
        world
            .publish(&event(&format!("v{}", number % 5), number, "hello"))
            .await;
    }

    world.start("b");
    world.wait_for_records(30).await;
    world.wait_until_acked().await;

    assert_eq!(model.calls(), 30);

    let by = world.invocations().await.into_iter().map(|record| record.evaluated_by);
    assert_eq!(by.filter(|by| by == "a").count(), 20);
}

/// Answers while the server is away, and otherwise each time; prints before it does.
const LATE: &str = "export default async () => {
  await new Promise((resolve) => setTimeout(resolve, 2000));
  console.log('late answers');
  return { fire: true, routing: { session: `late-${Math.random()}` } }; };\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_counts_when_the_server_was_away_in_between() {
    let mut world = World::new(&[("late.ts", LATE), ("once.ts", ONCE)]).await;
    let log = world.write_file("hook-svc.log", "");
    world.log = Some(log.clone());
    world.start("a");
    world.wait_for_members(1).await;

    let happens = event("v1", 1, "hello");
    world.publish(&happens).await;

    eventually("the shot is spent", async || {
        world
            .hook_state("once")
            .await
            .is_some_and(|state| state.fired_once.is_some())
    })
    .await;

    world.nats.kill9();
    eventually("the late one has answered", async || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("late answers"))
    })
    .await;
    world.nats.restart().await;

    let record = world.record(&happens).await;
    for id in ["late", "once"] {
        assert!(
            matches!(of(&record, id).outcome, HookOutcome::Fired { .. }),
            "{record:?}"
        );
    }

    let mut hooks: Vec<String> = world
        .dispatches()
        .await
        .into_iter()
        .map(|dispatch| dispatch.hook_id)
        .collect();

    hooks.sort();
    assert_eq!(hooks, ["late", "once"]);
    assert!(world.dead_letters().await.is_empty());
}

/// Fires, where its breaker lets it.
const ROUTES: &str = "export default ({ event }) => ({ fire: event.content === 'second' });\n";

/// The first fallback is done at once; the other has its turn after an earlier event that is still open.
const FALLS: &str =
    "/** @fallback\n * @match content=second */\nexport default () => ({ fire: true, routing: { session: 'one' } });\n";
const WAITS: &str = "/** @fallback */\nexport default () => ({ fire: true, routing: { session: 'two' } });\n";

/// Keeps the first event open.
const OPEN: &str = "/** @timeout 5m\n * @match content=first */
export default async () => { await new Promise((resolve) => setTimeout(resolve, 280000)); return { fire: false }; };\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_was_paused_when_a_fallback_fired_does_not_fire_beside_it() {
    let files = [
        ("routes.ts", ROUTES),
        ("falls.ts", FALLS),
        ("waits.ts", WAITS),
        ("open.ts", OPEN),
    ];

    let mut world = World::new(&files).await;
    let breakers = world.bus.kv::<Breaker>(buckets::BREAKERS);
    let hash = HEXLOWER.encode(&Sha256::digest(ROUTES.as_bytes()));

    let open = Breaker {
        circuit: BreakerState::Open {
            until: UnixMillis(i64::MAX / 2),
        },
        ..Breaker::for_hook("routes", &hash)
    };

    breakers.put("routes", &open).await.expect("paused");
    world.start("a");
    world.wait_for_members(1).await;
    let (first, second) = (event("v1", 1, "first"), event("v1", 2, "second"));
    world.publish(&first).await;
    world.publish(&second).await;
    eventually("the fallback's dispatch", async || !world.dispatches().await.is_empty()).await;
    world.replica("a").kill();

    assert!(world.invocations().await.is_empty(), "neither event is done");

    breakers
        .put("routes", &Breaker::for_hook("routes", &hash))
        .await
        .expect("it runs again");
    std::fs::remove_file(world.hooks_dir().join("open.ts")).expect("removed");
    world.start("b");
    let record = world.record(&second).await;

    let of_second: Vec<String> = world
        .dispatches()
        .await
        .into_iter()
        .filter(|dispatch| dispatch.event_id == second.id)
        .map(|dispatch| dispatch.hook_id)
        .collect();

    assert!(!of_second.contains(&"routes".to_owned()), "{of_second:?}, {record:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_of_hooks_are_those_of_their_files_on_any_number_of_replicas() {
    let timed = "/** @schedule every 30m\n * @schedule cron 0 9 * * MON-FRI\n * @timezone America/Chicago */\nexport default () => ({ fire: true });\n";
    let mut world = World::new(&[("timed.ts", timed)]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    let book = ScheduleBook::new(&world.bus);

    let ids = async || {
        let entries = book.kv().entries().await.expect("readable");
        let mut ids: Vec<_> = entries
            .into_iter()
            .map(|(_, entry)| (entry.value.spec.id, entry.value.spec.zone))
            .collect();

        ids.sort();
        ids
    };

    let zone = || "America/Chicago".to_owned();
    let both = vec![("hook:timed:0".to_owned(), zone()), ("hook:timed:1".to_owned(), zone())];
    eventually("both schedules are there", async || ids().await == both).await;
    world.write_hook("timed.ts", &timed.replace(" * @schedule cron 0 9 * * MON-FRI\n", ""));
    eventually("one is left", async || ids().await == both[..1]).await;
    std::fs::remove_file(world.hooks_dir().join("timed.ts")).expect("removed");
    eventually("none is left", async || ids().await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_an_item_has_an_answer_of_its_own() {
    let model = ModelServer::ruled(|_, number| ScriptedAnswer::text(&format!("answer-{number}"))).await;
    let asks = format!("/** @match direction=created,updated */\n{ASKS}");
    let once = format!("/** @mode one-shot\n * @match direction=updated */\n{ONCE_BODY}");
    let mut world = World::new(&[("asks.ts", &asks), ("once.ts", &once)]).await;
    world.sections = model_section(&model);
    world.start("a");
    world.wait_for_members(1).await;

    let mut item = event("v1", 1, "hello");
    item.direction = EventDirection::Created;
    world.publish(&item).await;
    item.direction = EventDirection::Updated;

    for change in 1..=2 {
        item.content = format!("edit {change}");
        world.publish(&item).await;
    }

    world.wait_for_records(3).await;
    let dispatches = world.dispatches().await;
    let sessions = |hook: &str| {
        let of_hook = dispatches.iter().filter(|dispatch| dispatch.hook_id == hook);
        let mut sessions: Vec<_> = of_hook.map(|dispatch| dispatch.target.session.clone()).collect();
        sessions.sort();
        sessions
    };

    assert_eq!(sessions("asks"), ["answer-0", "answer-1", "answer-2"]);
    assert_eq!(sessions("once").len(), 1);
}

/// At most once an hour.
const RESTS: &str =
    "export default ({ hook, now }) => ({ fire: now.getTime() - (hook.last_triggered ?? 0) > 3600000 });\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_rests_between_fires_knows_of_the_last_one_wherever_it_was() {
    let mut world = World::new(&[("rests.ts", RESTS)]).await;
    world.start("a");
    world.wait_for_members(1).await;
    world.publish(&event("v0", 0, "the first")).await;
    eventually("it fires", async || world.dispatches().await.len() == 1).await;
    world.start("b");
    world.wait_for_members(2).await;

    for number in 1..20 {
        world.publish(&event(&format!("v{number}"), number, "more")).await;
    }

    world.wait_for_records(20).await;
    assert_eq!(world.dispatches().await.len(), 1);

    let last = world.invocations().await.pop().expect("records").evaluated_by;
    world.replica(&last).kill();
    world.publish(&event("v99", 99, "at the survivor")).await;
    world.wait_for_records(21).await;

    assert_eq!(world.dispatches().await.len(), 1);

    let state = world.hook_state("rests").await.expect("counted");
    assert_eq!((state.trigger_count, state.counted.len()), (1, 1));
}

/// Fires once, with as much as a hook may say.
const LARGE: &str = "/** @mode one-shot */
export default ({ event }) => ({ fire: true, context: { prompt: 'x'.repeat(event.content.length > 9 ? 250000 : 1) } });\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_makes_no_dispatch_spends_no_shot() {
    let world = World::with_one_replica(&[("large.ts", LARGE)]).await;
    // More than the server takes, together with the hook's own words.
    let mut large = event("v1", 1, "a large one");
    large.metadata.insert("blob".to_owned(), json!("y".repeat(900_000)));
    world.publish(&large).await;
    let record = world.record(&large).await;

    assert!(
        matches!(of(&record, "large").outcome, HookOutcome::Failed { .. }),
        "{record:?}"
    );

    let state = world.hook_state("large").await;
    assert!(
        state.is_none_or(|state| state.fired_once.is_none()),
        "it still has its shot"
    );

    let small = event("v1", 2, "small");
    world.publish(&small).await;
    let record = world.record(&small).await;

    assert!(
        matches!(of(&record, "large").outcome, HookOutcome::Fired { .. }),
        "{record:?}"
    );
}
