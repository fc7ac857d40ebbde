//! A queue that was made anew gives sequences out again: what was given up at one comes again at the same one.

use shared::bus::OutgoingMessage;
use shared::testing::eventually;
use shared::wire::topology::streams::{DELIVERIES, RECEIPTS};

use crate::receiver::Receiver;
use crate::world::{Setup, World, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_and_comes_again_at_its_old_sequence_is_delivered() {
    let (mut world, receiver) = (World::start().await, Receiver::start(&[(400, None)]).await);
    let setup = || Setup {
        url: receiver.url(),
        ..Setup::default()
    };

    world.server.stop().await;
    let empty = world.server.copy_of(DELIVERIES);
    world.server.restart().await;
    let first = world.replica("a", setup());
    let reply = reply(1, "webhook", "ann");
    let given_up_at = world.publish(&reply).await;
    world.settled().await;
    first.stop().await;

    assert_eq!(world.dead_letters().await.len(), 1);

    world.server.stop().await;
    world.server.put_back(DELIVERIES, &empty);
    world.server.restart().await;
    let again = OutgoingMessage::reply(&reply).msg_id("redrive:1");
    let again = world.bus.publish(again).await.expect("stored").sequence;

    assert_eq!(again, given_up_at, "the sequence is given out once more");

    let second = world.replica("b", setup());
    eventually("it is delivered", async || receiver.calls().len() == 2).await;
    world.settled().await;

    assert_eq!(world.sent_events().await.len(), 1);

    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_receipts_lost_before_their_witness_saw_it_is_known_by_the_sent_events() {
    let (mut world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let setup = || Setup {
        url: receiver.url(),
        ..Setup::default()
    };

    let first = world.replica("a", setup());
    world.publish(&reply(1, "webhook", "ann")).await;
    world.settled().await;
    first.stop().await;
    world.server.stop().await;
    let (queue, receipts) = (world.server.copy_of(DELIVERIES), world.server.copy_of(RECEIPTS));
    world.server.restart().await;

    // Nobody writes the witness after this one is sent: a power cut takes its receipt and its ack, and nothing else.
    let second = world.replica("b", setup());
    let cut = reply(2, "webhook", "ann");
    world.publish(&cut).await;
    world.settled().await;
    second.kill();
    world.server.stop().await;
    world.server.put_back(DELIVERIES, &queue);
    world.server.put_back(RECEIPTS, &receipts);
    world.server.restart().await;

    // In the queue when the next owner comes, unlike what it has never seen.
    world.publish(&cut).await;
    let fresh = reply(3, "webhook", "ann");
    world.publish(&fresh).await;

    let third = world.replica("c", setup());
    world.settled().await;
    assert_eq!(receiver.contents(), ["echo: 1", "echo: 2", "echo: 3"]);
    assert_eq!(world.sent_events().await.len(), 3);

    third.stop().await;
}
