//! A replica is killed between a dispatch and its event's record.

use shared::schedule::book::ScheduleBook;
use shared::testing::model_server::{ModelServer, Scripted};

use crate::world::{World, event, eventually};

/// Goes where the model says; it says otherwise each time.
const ASKS: &str =
    "export default async ({ llm }) => ({ fire: true, routing: { session: await llm('where to?') } });\n";

/// Fires once, with something of chance in it.
const ONCE: &str = "/** @mode one-shot */
export default () => ({ fire: true, routing: { session: `once-${Math.random()}` } });\n";

/// Keeps the event open, so that there is no record yet.
const SLOW: &str = "/** @timeout 60s */
export default async () => { await new Promise((resolve) => setTimeout(resolve, 20000)); return { fire: false }; };\n";

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_model_and_one_shots_count_as_they_were_first() {
    let model = ModelServer::ruled(|_, number| Scripted::text(&format!("answer-{number}"))).await;
    let mut world = World::new(&[("asks.ts", ASKS), ("once.ts", ONCE), ("slow.ts", SLOW)]).await;
    world.sections = format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"{}\"\n",
        model.base_url("openai")
    );
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
    world.replica("a").kill();
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
