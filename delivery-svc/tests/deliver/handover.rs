//! A partition goes to another replica, or comes back, while a call is under way: nothing arrives twice.

use std::collections::BTreeMap;

use shared::bus::Bus;
use shared::testing::eventually;
use shared::wire::session_mark::LeaseRecord;
use shared::wire::subject::parse_delivery;
use shared::wire::topology::{buckets, streams};

use crate::receiver::Receiver;
use crate::world::{Setup, World, reply};

/// Replies to as many peers, of which some come to be another replica's.
const REPLIES: u64 = 12;

/// Who holds `partition`.
pub(crate) async fn holder(bus: &Bus, partition: u16) -> Option<String> {
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
    let (lease, _) = leases.find(&format!("delivery.{partition}")).await.expect("KV answers");
    lease.map(|lease| lease.holder)
}

/// A replica that has called for every reply, and has no answer yet; the partitions of the replies.
async fn calling(world: &World, receiver: &Receiver) -> Vec<u16> {
    receiver.hold(true);

    for number in 0..REPLIES {
        world.publish(&reply(number, "webhook", &format!("p{number}"))).await;
    }

    eventually("all calls are under way", async || {
        receiver.calls().len() as u64 == REPLIES
    })
    .await;
    let stored = world.bus.read_history(streams::DELIVERIES, "nexus.dl.>", 1, 100).await;
    let partition = |subject: &str| parse_delivery(subject).expect("a delivery").partition;
    let mut partitions: Vec<u16> = stored
        .expect("the stream answers")
        .iter()
        .map(|stored| partition(&stored.subject))
        .collect();

    partitions.sort_unstable();
    partitions.dedup();

    partitions
}

fn assert_once(receiver: &Receiver) {
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    for call in receiver.calls() {
        *arrived.entry(call.id).or_default() += 1;
    }
    assert_eq!(arrived.len() as u64, REPLIES);
    arrived.retain(|_, times| *times > 1);
    assert!(arrived.is_empty(), "arrived again: {arrived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_owner_of_a_partition_takes_the_answers_of_calls_that_are_under_way() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let setup = || Setup {
        url: receiver.url(),
        ..Setup::default()
    };

    let first = world.replica("first", setup());
    let partitions = calling(&world, &receiver).await;

    // It takes over what its share is, once the first one has waited for its calls in vain.
    let second = world.replica("second", setup());
    eventually("some are the second one's", async || {
        for partition in &partitions {
            if holder(&world.bus, *partition).await.as_deref() == Some("second") {
                return true;
            }
        }
        false
    })
    .await;

    receiver.hold(false);
    world.settled().await;
    assert_once(&receiver);
    assert_eq!(world.sent_events().await.len() as u64, REPLIES);

    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_loses_its_leases_and_takes_them_again_goes_on_with_its_calls() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let setup = Setup {
        url: receiver.url(),
        ..Setup::default()
    };

    let replica = world.replica("only", setup);
    let partitions = calling(&world, &receiver).await;

    // As after a stop that was longer than the leases last: what was in hand is dropped, and taken up again.
    let leases = world.bus.kv::<LeaseRecord>(buckets::LEASES);
    let mut taken = Vec::new();
    for partition in &partitions {
        let key = format!("delivery.{partition}");
        let (lease, _) = leases.find(&key).await.expect("KV answers");
        taken.push((*partition, lease.expect("it is held").epoch));
        leases.delete(&key, None).await.expect("it is deleted");
    }

    eventually("they are taken again", async || {
        for (partition, epoch) in &taken {
            let (lease, _) = leases.find(&format!("delivery.{partition}")).await.expect("KV answers");
            if lease.is_none_or(|lease| lease.epoch <= *epoch) {
                return false;
            }
        }

        true
    })
    .await;

    receiver.hold(false);
    world.settled().await;
    assert_once(&receiver);

    replica.stop().await;
}
