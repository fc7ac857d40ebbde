//! Records and messages that nobody should have written: they hold up nothing, and win nothing.

use bytes::Bytes;
use serde_json::json;
use shared::bus::{Outgoing, RequestError};
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::buckets::{ATTEMPTS, LEASES};

use crate::world::{World, event, eventually};

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
        let garbage = Outgoing::raw(format!("$KV.{key}"), Headers::new(), Bytes::from_static(b"\xff"));
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
    let out = Outgoing::new(subject::event(&good), &forged).msg_id(forged.id.as_str());
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
