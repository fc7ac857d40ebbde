//! The same event sent again and again, to both adapters: it happens once.

use tests::load::{Gateways, Load, send};
use tests::world::World;

use crate::killer::tell;
use crate::kills::{settled, setup};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_sent_three_times_happens_once() {
    let world = World::start(setup(1)).await;
    let gateways = Gateways::default();
    tell(&world, &gateways);

    let load = Load {
        events: 600,
        rate: 200,
        sessions: 50,
        copies: 3,
    };

    let accepted = send(load, gateways).await;
    let record = settled(&world, &accepted).await;
    assert_eq!(record.turns().len() as u64, load.events + load.events / 5);
}
