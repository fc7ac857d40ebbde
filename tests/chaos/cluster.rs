//! Three servers with replicated streams, one of them lost at a time.

use tests::load::{Gateways, Load, send};
use tests::world::World;

use crate::killer::{Choices, kill_nats, kill_service, tell};
use crate::kills::{is_long, settled, setup};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_loses_one_server_at_a_time_and_nothing_else() {
    let rounds = if is_long() { 12 } else { 4 };
    let mut choices = Choices::new(3);
    let mut world = World::start(setup(3)).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);
    let load = Load {
        events: 100 * 5 * rounds,
        rate: 100,
        sessions: 50,
        copies: 1,
    };
    let sending = tokio::spawn(send(load, gateways.clone()));
    for round in 0..rounds {
        let round = usize::try_from(round).unwrap_or(0);
        kill_nats(&mut world, &mut choices, round % 3).await;
        kill_service(&mut world, &mut choices, round, &gateways).await;
        kill_service(&mut world, &mut choices, round + 2, &gateways).await;
    }
    let accepted = sending.await.expect("the load was sent");
    world.stack.ready().await.expect("everything comes up again");
    let record = settled(&world, &accepted).await;
    assert_eq!(record.turns().len() as u64, load.events + load.events / 5);
}
