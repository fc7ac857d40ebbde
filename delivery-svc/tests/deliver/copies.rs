//! A queue that was made anew gives sequences out again: what was given up at one comes again at the same one.

use shared::bus::Outgoing;
use shared::wire::topology::streams::DELIVERIES;

use crate::receiver::Receiver;
use crate::world::{Setup, World, eventually, reply};

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
    let again = Outgoing::reply(&reply).msg_id("redrive:1");
    let again = world.bus.publish(again).await.expect("stored").sequence;
    assert_eq!(again, given_up_at, "the sequence is given out once more");
    let second = world.replica("b", setup());
    eventually("it is delivered", async || receiver.calls().len() == 2).await;
    world.settled().await;
    assert_eq!(world.sent_events().await.len(), 1);
    second.stop().await;
}
