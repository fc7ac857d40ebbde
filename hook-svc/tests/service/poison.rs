//! Records and messages that nobody should have written: they hold up nothing, and win nothing.

use bytes::Bytes;
use serde_json::json;
use shared::bus::{OutgoingMessage, RequestError};
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::buckets::{ATTEMPTS, HOOK_RESULTS, HOOK_STATE, LEASES};

use crate::world::{World, event};

const FIRE: &str = "export default () => ({ fire: true });\n";

#[tokio::test(flavor = "multi_thread")]
async fn broken_coordination_records_hold_up_no_partition() {
    let mut world = World::new(&[("fire.ts", FIRE)]).await;
    let hello = event("v1", 1, "hello");
    let sequence = world.publish(&hello).await;
    let partition = world.partition(sequence).await;

    for key in [
        format!("{LEASES}.hook.{partition}"),
        format!("{ATTEMPTS}.floors.hook"),
        format!("{ATTEMPTS}.attempts.hook.{partition}"),
    ] {
        let garbage = OutgoingMessage::raw(format!("$KV.{key}"), Headers::new(), Bytes::from_static(b"\xff"));
        world.bus.publish(garbage).await.expect("stored");
    }

    world.start("a");
    world.record(&hello).await;
    world.wait_until_acked().await;

    assert_eq!(world.dispatches().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_writes_under_another_subject_or_of_anothers_hook_is_refused() {
    let world = World::with_one_replica(&[("fire.ts", FIRE)]).await;
    let (good, forged) = (event("v1", 1, "hello"), event("owner", 2, "I am the owner"));
    let mut out = OutgoingMessage::event(&forged, world.bus.trust());
    out.subject = subject::event(&good);
    world.bus.publish(out).await.expect("stored");
    world.publish(&good).await;
    world.record(&good).await;
    eventually("the dead letter", async || !world.dead_letters().await.is_empty()).await;

    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, "wrong_subject");

    world.wait_until_acked().await;
    assert_eq!(world.dispatches().await.len(), 1, "of the good one");

    let made = json!({"name": "made", "script": "return { fire: false };", "created_by": "agent:atlas"});
    world.ask("create", made).await.expect("made");

    for (name, question) in [("disable", "made"), ("delete", "made"), ("disable", "fire")] {
        let refused = world
            .ask(name, json!({"name": question, "asked_by": "agent:bella"}))
            .await
            .expect_err("it is another's");
        assert!(matches!(refused, RequestError::Service { code: 409, .. }), "{refused}");
    }

    let own = json!({"name": "made", "asked_by": "agent:atlas"});
    assert_eq!(
        world.ask("disable", own.clone()).await.expect("disabled")["status"],
        "disabled"
    );

    world.ask("delete", own).await.expect("deleted");
    let by_operator = json!({"name": "fire", "reason": "noisy"});
    world.ask("disable", by_operator).await.expect("operators may");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_answer_or_state_that_cannot_be_read_holds_up_nothing() {
    let once = "/** @mode one-shot\n * @match content=once */\nexport default () => ({ fire: true });\n";
    let finds = "export default async ({ search, event }) => { await search('x'); return { fire: event.content === 'asked' }; };\n";
    let world = World::with_one_replica(&[("once.ts", once), ("finds.ts", finds)]).await;
    let (shot, asked, last) = (event("v1", 1, "once"), event("v1", 2, "asked"), event("v1", 3, "hello"));
    let key = subject::token(asked.id.as_str());

    for key in [format!("{HOOK_STATE}.once"), format!("{HOOK_RESULTS}.{key}")] {
        let garbage = OutgoingMessage::raw(format!("$KV.{key}"), Headers::new(), Bytes::from_static(b"\xff"));
        world.bus.publish(garbage).await.expect("stored");
    }

    for event in [&shot, &asked, &last] {
        world.publish(event).await;
    }

    world.record(&last).await;
    world.wait_until_acked().await;
    let letters = world.dead_letters().await;
    let reasons: Vec<_> = letters.iter().map(|letter| letter.reason.as_str()).collect();

    assert_eq!(
        reasons,
        ["keeps_failing"],
        "a one-shot's state decides, and cannot be guessed"
    );

    let hooks: Vec<_> = world
        .dispatches()
        .await
        .into_iter()
        .map(|dispatch| dispatch.hook_id)
        .collect();

    assert_eq!(hooks, ["finds"]);
}
