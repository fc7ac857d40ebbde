//! What is held outlives its bucket.

use delivery_svc::receipts::receipts_witness;
use shared::clock::SystemClock;
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::eventually;
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::topology::buckets::HELD;
use shared::wire::topology::streams::DELIVERIES;
use ulid::Ulid;

use crate::world::World;

fn held(number: u64) -> HeldMessage {
    HeldMessage {
        kind: HeldKind::Delivery,
        id: Ulid::from_parts(number, 1),
        stream: DELIVERIES.to_owned(),
        sequence: number,
        subject: "nexus.delivery.nats.default.p".to_owned(),
        headers: vec![("Nexus-Schema".to_owned(), "reply/1".to_owned())],
        payload: HeldMessage::encode_payload(b"{}"),
        why: "nobody can tell".to_owned(),
        at: UnixMillis(5),
        wanted: HeldUntil::Decided,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_is_held_again_at_the_next_start_where_its_bucket_was_emptied() {
    let mut world = World::start().await;
    world.server.stop().await;
    let bucket = format!("KV_{HELD}");
    let empty = world.server.copy_of(&bucket);
    world.server.restart().await;

    let (open, decided) = (held(1), held(2));
    for one in [&open, &decided, &open] {
        assert_eq!(world.bus.hold_message(one).await.expect("held"), HeldUntil::Decided);
    }

    assert_eq!(world.dead_letters().await.len(), 2, "one letter each");

    let entry = world
        .bus
        .held_bucket()
        .get(&decided.key())
        .await
        .expect("read")
        .expect("held");
    let skipped = world.bus.decide_held(&entry.value, HeldUntil::Skip, entry.revision);
    skipped.await.expect("decided");
    world.bus.take_held_letters(&decided).await.expect("taken away");

    assert_eq!(world.bus.hold_again(HeldKind::Delivery).await.expect("looked"), 0);

    world.server.stop().await;
    world.server.put_back(&bucket, &empty);
    world.server.restart().await;

    assert!(world.bus.held_bucket().entries().await.expect("read").is_empty());

    let stop = ShutdownSignal::default();
    tokio::spawn(receipts_witness(&world.bus).run_witness(std::sync::Arc::new(SystemClock), stop.clone()));
    eventually("what nobody had decided is held again", async || {
        let held = world.bus.held_bucket().entries().await.expect("read");
        let found: Vec<&HeldMessage> = held.iter().map(|(_, entry)| &entry.value).collect();
        found == [&open]
    })
    .await;

    stop.trigger();
}
