//! A direct message goes the whole way and comes back: event, hook, dispatch, turn, delivery, sent event.

use std::time::Duration;

use cli::trace::await_complete;
use shared::model::event::EventId;
use shared::projection::api::TraceStage;
use tests::world::{Setup, World, shipped_hook};

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_message_is_echoed_and_its_chain_is_told() {
    let hooks = vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))];
    let world = World::start(Setup {
        hooks,
        ..Setup::default()
    })
    .await;

    let patience = Duration::from_secs(30);
    let (event, answer) = cli::demo::senders::chat(&world.gateway(), "hello there", patience)
        .await
        .expect("an answer");

    assert_eq!(answer, "echo: hello there");

    let id = EventId::parse(event).expect("an event id");
    let trace = await_complete(&world.bus, &id, patience)
        .await
        .expect("hook-svc answers");

    assert!(trace.complete, "{trace:?}\n{}", world.logs());

    let stages: Vec<TraceStage> = trace
        .steps
        .iter()
        .filter(|step| step.depth == 0)
        .map(|step| step.stage)
        .collect();

    for stage in [
        TraceStage::Event,
        TraceStage::Hook,
        TraceStage::Dispatch,
        TraceStage::Turn,
        TraceStage::Delivery,
    ] {
        assert!(stages.contains(&stage), "{stage:?} in {trace:?}");
    }

    world.stack.stop().await;
}
