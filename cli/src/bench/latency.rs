//! Latency at a fixed rate: events are sent when their time has come, whatever became of those before.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::Dispatch;
use shared::wire::envelope::decode;
use shared::wire::headers::CAUSATION;

use crate::args::BenchOptions;
use crate::launch::Stack;

use super::load::{Answers, Sender};
use super::{percentile, setting};

/// Events before the measured ones: workers compile, caches fill.
const WARM_UP_SECONDS: u64 = 5;

/// Milliseconds, ascending.
#[derive(Debug)]
pub(super) struct Latencies {
    pub(super) dispatch: Vec<f64>,
    pub(super) reply: Vec<f64>,
}

impl Latencies {
    pub(super) fn of(sorted: &[f64]) -> super::Latency {
        super::Latency {
            p50_ms: percentile(sorted, 0.5),
            p99_ms: percentile(sorted, 0.99),
        }
    }
}

pub(super) async fn run(stack: &Stack, options: &BenchOptions) -> Result<Latencies> {
    let bus = stack.bus("nexus-bench").await?;
    let mut replies = Answers::listen(&bus, "nexus.out.bench.*").await?;
    let mut dispatches = Answers::listen(&bus, "nexus.dispatch.>").await?;
    let total = (WARM_UP_SECONDS + options.seconds) * options.rate;
    let dispatched = tokio::spawn(async move {
        let event_of = |message: &shared::bus::CoreMessage| {
            let dispatch: Dispatch = decode(&message.headers, &message.payload).ok()?;
            Some(dispatch.event_id.as_str().to_owned())
        };
        dispatches.until(total, event_of).await.map(|()| dispatches.heard)
    });
    let answered = tokio::spawn(async move {
        let event_of = |message: &shared::bus::CoreMessage| message.headers.get(CAUSATION).map(str::to_owned);
        replies.until(total, event_of).await.map(|()| replies.heard)
    });
    let sent = send_all(stack, options, total).await?;
    let dispatched = dispatched.await.context("a listener panicked")??;
    let answered = answered.await.context("a listener panicked")??;
    Ok(Latencies {
        dispatch: spans(&sent, &dispatched),
        reply: spans(&sent, &answered),
    })
}

/// Sends on schedule; answers when each event of the measured part was due.
async fn send_all(stack: &Stack, options: &BenchOptions, total: u64) -> Result<HashMap<String, Instant>> {
    let sender = Sender::new(&stack.gateway()?)?;
    let began = SystemClock.monotonic();
    let gap = Duration::from_secs(1) / u32::try_from(options.rate.max(1)).unwrap_or(u32::MAX);
    let warm = WARM_UP_SECONDS * options.rate;
    let mut sent = HashMap::new();
    let mut posting = Vec::new();
    for number in 0..total {
        let due = began + gap * u32::try_from(number).unwrap_or(u32::MAX);
        let wait = due.saturating_duration_since(SystemClock.monotonic());
        if !wait.is_zero() {
            pause(wait).await;
        }
        let event = setting::event("latency", number, options, SystemClock.now())?;
        if number >= warm {
            sent.insert(event.id.as_str().to_owned(), due);
        }
        let sender = sender.clone();
        posting.push(tokio::spawn(async move { sender.post(&[event]).await }));
    }
    for post in posting {
        post.await.context("a sender panicked")??;
    }
    Ok(sent)
}

fn spans(sent: &HashMap<String, Instant>, heard: &HashMap<String, Instant>) -> Vec<f64> {
    let pairs = sent.iter().filter_map(|(event, at)| Some((at, heard.get(event)?)));
    let mut spans: Vec<f64> = pairs
        .map(|(at, then)| then.saturating_duration_since(*at).as_secs_f64() * 1e3)
        .collect();
    spans.sort_by(f64::total_cmp);
    spans
}
