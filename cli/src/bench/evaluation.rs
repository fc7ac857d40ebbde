//! Measures hook-svc alone: with events that wait in the stream, from its start to the last record, and with events at
//! a fixed rate and a hook that queries the read model.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, stream};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::Event;
use shared::model::invocation::EventInvocations;
use shared::wire::envelope::decode;
use shared::wire::topology::streams::INVOCATIONS;

use crate::args::BenchOptions;
use crate::launch::{Plan, Stack};

use super::latency::{self, Latencies};
use super::load::Answers;
use super::report::{Evaluation, Latency};
use super::setting;
use super::throughput::seconds;

/// Number of publishes in flight while the stream is filled.
const WRITERS: usize = 1_024;
/// Share of the records that counts as the warm-up: afterwards everything is warm and every partition owned.
const WARM: f64 = 0.2;
/// Longest time of the whole measurement.
const DEADLINE: Duration = Duration::from_secs(300);

/// Measures events per second, without and with one firing hook.
pub(super) async fn run(directory: &Path, options: &BenchOptions, durability: &str) -> Result<Evaluation> {
    let quiet = one(&directory.join("quiet"), options, durability, false).await?;
    let firing = one(&directory.join("firing"), options, durability, true).await?;
    let near = directory.join("asking");
    let plan = setting::hooks_only(&near, options, durability, false)?;
    let asking = ask_at_rate(&near, plan, options).await?;
    let far = directory.join("asking-another");
    let plan = setting::one_copy_of_two(&far, options, durability)?;
    let asking_another = ask_at_rate(&far, plan, options).await?;

    Ok(Evaluation {
        events_per_s: quiet,
        firing_events_per_s: firing,
        asking,
        asking_another,
    })
}

/// Measures the time from the moment at which an event is due, at a fixed rate, to its record, with one more hook that
/// queries the read model for each event. The history is as long as the flood.
async fn ask_at_rate(directory: &Path, plan: Plan, options: &BenchOptions) -> Result<Latency> {
    setting::write_asking_hook(directory)?;
    let stack = Stack::start(plan).await?;
    let bus = stack.bus("nexus-bench").await?;
    fill(&bus, options).await?;
    watch(&bus, options.events).await?;
    let total = latency::paced(options);

    let mut records = Answers::listen(&bus, "nexus.invocation.>").await?;
    let recorded = tokio::spawn(async move {
        let event_of = |message: &shared::bus::CoreMessage| {
            let record: EventInvocations = decode(&message.headers, &message.payload).ok()?;
            Some(record.event_id.as_str().to_owned())
        };
        let heard = records.until(total, event_of).await;
        heard.map(|()| records.heard)
    });

    let publish = move |event: Event| {
        let bus = bus.clone();
        async move { publish(&bus, &event).await }
    };
    let sent = latency::send_all("asking", options, publish).await?;
    let recorded = recorded.await.context("a listener panicked")??;
    stack.stop().await;

    Ok(Latencies::of(&latency::spans(&sent, &recorded)))
}

async fn publish(bus: &Bus, event: &Event) -> Result<()> {
    let out = OutgoingMessage::event(event, bus.trust());
    bus.publish(out).await.context("failed to publish an event")?;
    Ok(())
}

async fn one(directory: &Path, options: &BenchOptions, durability: &str, firing: bool) -> Result<f64> {
    std::fs::create_dir_all(directory).context("failed to create the directory")?;
    let plan = setting::hooks_only(directory, options, durability, firing)?;
    let mut stack = Stack::start(Plan {
        services: Vec::new(),
        ..plan
    })
    .await?;

    let bus = stack.bus("nexus-bench").await?;
    fill(&bus, options).await?;
    stack.launch("hook-svc", 0)?;
    stack.ready().await?;
    let rate = watch(&bus, options.events).await?;
    stack.stop().await;

    Ok(rate)
}

async fn fill(bus: &Bus, options: &BenchOptions) -> Result<()> {
    let now = SystemClock.now();
    let mut published = stream::iter(0..options.events)
        .map(|number| async move {
            let event = setting::event("evaluation", number, options, now)?;
            publish(bus, &event).await
        })
        .buffer_unordered(WRITERS);

    while let Some(outcome) = published.next().await {
        outcome?;
    }

    Ok(())
}

/// Returns the rate from the end of the warm-up to the last record.
async fn watch(bus: &Bus, events: u64) -> Result<f64> {
    let first = (events as f64 * WARM) as u64;
    let mut began = None;

    let deadline = SystemClock.monotonic() + DEADLINE;
    loop {
        let done = bus.stream_state(INVOCATIONS).await?.last;
        let now = SystemClock.monotonic();
        if done >= first && began.is_none() {
            began = Some((now, done));
        }

        if done >= events {
            let (from, at) = began.unwrap_or((now, 0));
            return Ok((done - at) as f64 / seconds(from, now));
        }

        if now > deadline {
            bail!("{done} of {events} events were evaluated in {} s", DEADLINE.as_secs());
        }

        pause(Duration::from_millis(10)).await;
    }
}
