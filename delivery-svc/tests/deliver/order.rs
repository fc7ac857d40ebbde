//! Order per peer, all peers at once, through one account: one partition.

use std::collections::BTreeMap;

use shared::wire::headers::CAUSATION;

use crate::world::{Setup, World, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_peer_gets_its_replies_in_order() {
    const PEERS: u64 = 100;
    const REPLIES: u64 = 2_000;
    let world = World::start().await;
    let mut parts = world.bus.core_subscribe("nexus.out.>").await.expect("subscribed");
    world.bus.flush().await.expect("flushed");
    let publish = |n: u64| {
        let world = &world;
        async move { world.publish(&reply(n, "nats", &format!("p{}", n % PEERS))).await }
    };
    for start in (0..REPLIES).step_by(100) {
        futures_util::future::join_all((start..start + 100).map(publish)).await;
    }
    let replica = world.replica("a", Setup::default());
    world.settled().await;

    let mut got: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..REPLIES {
        let message = parts.next().await.expect("a part");
        let part: serde_json::Value = serde_json::from_slice(&message.payload).expect("JSON");
        let cause = message.headers.get(CAUSATION).expect("a cause").to_owned();
        assert!(cause.starts_with("test:"), "{cause}");
        got.entry(message.subject)
            .or_default()
            .push(part["delivery"].as_str().expect("an id").to_owned());
    }
    assert_eq!(got.len() as u64, PEERS);
    assert!(
        got.values()
            .all(|ids| ids.len() as u64 == REPLIES / PEERS && ids.is_sorted())
    );
    assert_eq!(world.sent_events().await.len() as u64, REPLIES);
    replica.stop().await;
}
