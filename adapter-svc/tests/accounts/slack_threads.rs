//! Threads of Slack that begin with a message to the app: later messages there are for it too, on every replica.

use serde_json::json;
use shared::model::channel::BegunThread;
use shared::model::event::{EventDirection, MentionForm};
use shared::testing::{eventually, eventually_some};
use shared::wire::topology::buckets;

use crate::slack::{channels, message, post, stamp};
use crate::web_api::WebApi;
use crate::world::{Replica, START, World};

/// Posts messages without a mention in the thread `first` to `replica`, the first with `number`, until one is for the app: a
/// replica hears of a thread a moment later. Returns the number of the next message.
async fn follow_up(world: &World, replica: &Replica, first: &str, number: i64) -> i64 {
    let mut next = number;
    eventually("a message in the thread is for the app", async || {
        let keys = json!({"thread_ts": first, "parent_user_id": "U5"});
        let id = format!("slack:main/C1/{}", stamp(next, START));
        post(replica, &message(next, START, "C1", &keys)).await;
        next += 1;
        let events = world.events().await;
        let event = events.iter().find(|event| event.id.as_str() == id);
        let how = event.and_then(|event| event.mention).map(|mention| mention.how);
        event.is_some_and(|event| event.direction == EventDirection::Received) && how == Some(MentionForm::Thread)
    })
    .await;
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_that_began_with_a_mention_goes_on_without_one_on_every_replica_and_after_a_start() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let channels = channels(&world, &api, "allow: [U5], groups: {C1: {allow: [U5]}}");
    let one = world.replica("adapter-svc-0", &channels).await;
    let two = world.replica("adapter-svc-1", &channels).await;
    for replica in [&one, &two] {
        replica.says("slack/main", "receiving").await;
    }

    // One thread begins with a mention, one among people, and one by somebody who may not write.
    let begin = [
        (1_i64, json!({"text": "<@U7> hi"})),
        (2, json!({})),
        (3, json!({"user": "U6", "text": "<@U7> hi"})),
    ];
    let notes = world.bus.kv::<BegunThread>(buckets::THREADS);
    // A note that is not written in time is written when the message comes again.
    eventually("the first one is noted", async || {
        for (number, keys) in &begin {
            post(&one, &message(*number, START, "C1", keys)).await;
        }
        notes.entries().await.is_ok_and(|entries| entries.len() == 1)
    })
    .await;
    let next = follow_up(&world, &two, &stamp(1, START), 100).await;
    one.stop().await;
    two.stop().await;
    let three = world.replica("adapter-svc-2", &channels).await;
    three.says("slack/main", "receiving").await;
    let next = follow_up(&world, &three, &stamp(1, START), next).await;

    // By now it knows all threads that were noted.
    let others = [
        json!({"thread_ts": stamp(2, START), "parent_user_id": "U5"}),
        json!({"thread_ts": stamp(3, START), "parent_user_id": "U6"}),
        json!({"thread_ts": stamp(1, START), "parent_user_id": "U5", "bot_id": "B8"}),
    ];
    for (number, keys) in (next..).zip(&others) {
        post(&three, &message(number, START, "C1", keys)).await;
        let id = format!("slack:main/C1/{}", stamp(number, START));
        let event = eventually_some("it is stored", async || {
            let events = world.events().await;
            events.into_iter().find(|event| event.id.as_str() == id)
        })
        .await;
        assert_eq!(event.direction, EventDirection::Observed, "{keys}");
    }
    three.stop().await;
}
