//! A bot that is polled over a connection that brings nothing any more: after two minutes it is polled over another one.

use std::sync::Arc;

use adapter_svc::source::port::accounts::start_sources;
use shared::process::{Health, ShutdownSignal};
use shared::testing::{ManualClock, eventually};

use crate::bot_api::BotApi;
use crate::telegram::{MAIN, channels, message, polled_source};
use crate::world::{START, World, says};

const PART: &str = "telegram/main";

#[tokio::test(flavor = "multi_thread")]
async fn two_minutes_without_a_completed_poll_open_another_connection() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    // The clock of the calls alone moves: the account stays held.
    let timer = Arc::new(ManualClock::at(START));
    let (health, shutdown) = (Health::default(), ShutdownSignal::default());
    let context = world.sink_context(&world, &health);
    let source = polled_source(&channels(&world, &api, MAIN), timer.clone());
    let tasks = start_sources(vec![source], &context, "adapter-svc-0", &shutdown);
    api.add(MAIN, "message", &message(1, START));
    eventually("the first message is confirmed", async || api.confirmed(MAIN) == 1).await;

    // Nothing comes over the connection, and below two minutes it is kept.
    api.add(MAIN, "message", &message(2, START));
    eventually("the second message is confirmed", async || api.confirmed(MAIN) == 2).await;
    let connections = api.connections(MAIN);
    api.deaden(MAIN);
    api.add(MAIN, "message", &message(3, START));
    says(&health, PART, "failing for 0 s").await;
    timer.advance(119_000);
    says(&health, PART, "failing for 119 s").await;
    assert_eq!((api.connections(MAIN), api.confirmed(MAIN)), (connections, 2));

    timer.advance(2_000);
    eventually("the third message is confirmed", async || api.confirmed(MAIN) == 3).await;
    assert!(api.connections(MAIN) > connections);
    says(&health, PART, "polling as @nexus77bot").await;
    world.stored(3).await;
    shutdown.trigger();
    for task in tasks {
        task.await.expect("it ends in order");
    }
}
