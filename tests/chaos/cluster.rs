//! Three servers with replicated streams, one of them lost at a time.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use shared::wire::headers::Headers;
use shared::wire::topology::streams::{CLAIMS, DELIVERIES, DISPATCHES, EVENTS, LEDGER};
use tests::eventually::eventually;
use tests::load::{Gateways, Load, send};
use tests::world::World;

use crate::killer::{Choices, UP, kill_nats, kill_service, tell};
use crate::kills::{is_long, settled, setup};

/// Waits until every server has all of `stream`: who loses a second one before that has lost two.
async fn is_caught_up(world: &World, stream: &str) {
    let subject = format!("$JS.API.STREAM.INFO.{stream}");
    eventually("the server has caught up", UP, async || {
        let headers = Headers::new();
        let asked = world
            .bus
            .request_bytes(&subject, &headers, Bytes::new(), Duration::from_secs(5));
        let answer = asked.await.map_err(|error| error.to_string())?;
        let info: Value = serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())?;
        let others = info["cluster"]["replicas"].as_array().map_or(&[][..], Vec::as_slice);

        if others.len() == 2 && others.iter().all(|other| other["current"] == true) {
            Ok(())
        } else {
            Err(info["cluster"].to_string())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_loses_one_server_at_a_time_and_nothing_else() {
    // Each server once in the short form.
    let rounds = if is_long() { 12 } else { 3 };
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

        for stream in [EVENTS, DISPATCHES, CLAIMS, LEDGER, DELIVERIES] {
            is_caught_up(&world, stream).await;
        }
        kill_service(&mut world, &mut choices, round, &gateways).await;
        kill_service(&mut world, &mut choices, round + 2, &gateways).await;
    }

    let accepted = sending.await.expect("the load was sent");
    world.stack.ready().await.expect("everything comes up again");
    let record = settled(&world, &accepted).await;

    assert_eq!(record.turns().len() as u64, load.events + load.events / 5);
}
