//! A watermark that the server does not take: the account stops with words, and its events are stored.

use std::sync::Arc;

use adapter_svc::source::port::accounts::start_sources;
use adapter_svc::source::port::sink::SourcePosition;
use adapter_svc::source::port::{Source, SourceEnd, SourceSink};
use async_trait::async_trait;
use shared::model::event::{Event, EventId};
use shared::platform::policy::DirectPolicy;
use shared::process::{Health, ShutdownSignal};
use shared::testing::eventually;
use shared::wire::watermark::SourceWatermark;

use crate::world::{START, World};

/// A source whose position is larger than a message may be.
#[derive(Debug)]
struct LargeSource;

#[async_trait]
impl Source for LargeSource {
    fn channel(&self) -> &'static str {
        "telegram"
    }

    fn account(&self) -> &'static str {
        "main"
    }

    fn direct_policy(&self) -> DirectPolicy {
        DirectPolicy::Open
    }

    async fn run(&self, _from: Option<SourceWatermark>, sink: &SourceSink) -> SourceEnd {
        let id = EventId::parse("telegram:main/5/1").expect("an id");
        let event = Event::new(id, "telegram", "5", START);
        let position = SourcePosition {
            of: "bot 1".to_owned(),
            position: "x".repeat(2 * 1024 * 1024).into(),
            complete_until: START,
        };
        let stored = sink.put(vec![event], position).await;
        stored.expect_err("the server takes no such value").into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_that_is_too_large_stops_the_account_with_words() {
    let world = World::start().await;
    let (health, shutdown) = (Health::default(), ShutdownSignal::default());
    let context = world.sink_context(&world, &health);
    let tasks = start_sources(vec![Arc::new(LargeSource)], &context, "adapter-svc-0", &shutdown);

    eventually("the account stops", async || {
        let parts = health.readiness().parts;
        let part = parts.get("telegram/main");
        part.is_some_and(|part| {
            part.degraded && part.detail.starts_with("stopped: the watermark telegram.main has 2097")
        })
    })
    .await;
    world.stored(1).await;
    assert_eq!(world.watermark("telegram", "main").await, None);
    shutdown.trigger();
    for task in tasks {
        task.await.expect("it ends in order");
    }
}
