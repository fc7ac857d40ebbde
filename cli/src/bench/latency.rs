//! Latency at a fixed rate: events are sent at their due times, whether or not earlier ones have been answered.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::wire::envelope::decode;
use shared::wire::headers::CAUSATION;

use crate::args::BenchOptions;
use crate::launch::Stack;

use super::load::{Answers, Sender};
use super::{percentile, setting};

/// Seconds of events before the measured ones: workers compile and caches fill.
const WARM_UP_SECONDS: u64 = 5;
/// The same time.
pub(super) const WARM_UP: Duration = Duration::from_secs(WARM_UP_SECONDS);

/// Latencies in milliseconds, ascending.
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
    let total = paced(options);

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
    let sender = Sender::new(stack)?;
    let post = move |event: Event| {
        let sender = sender.clone();
        async move { sender.post(&[event]).await }
    };

    let sent = send_all("latency", options, post).await?;
    let dispatched = dispatched.await.context("a listener panicked")??;
    let answered = answered.await.context("a listener panicked")??;

    Ok(Latencies {
        dispatch: spans(&sent, &dispatched),
        reply: spans(&sent, &answered),
    })
}

/// Returns the number of events that are sent at the fixed rate, including the warm-up.
pub(super) const fn paced(options: &BenchOptions) -> u64 {
    (WARM_UP_SECONDS + options.seconds) * options.rate
}

/// Sends the events of run `run` on schedule, and returns the due time of each event of the measured part.
pub(super) async fn send_all<F>(
    run: &str,
    options: &BenchOptions,
    send: impl Fn(Event) -> F,
) -> Result<HashMap<String, Instant>>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let began = SystemClock.monotonic();
    let gap = Duration::from_secs(1) / u32::try_from(options.rate.max(1)).unwrap_or(u32::MAX);
    let warm = WARM_UP_SECONDS * options.rate;
    let mut sent = HashMap::new();

    let mut sending = Vec::new();
    for number in 0..paced(options) {
        let due = began + gap * u32::try_from(number).unwrap_or(u32::MAX);
        let wait = due.saturating_duration_since(SystemClock.monotonic());
        if !wait.is_zero() {
            pause(wait).await;
        }

        let event = setting::event(run, number, options, SystemClock.now())?;
        if number >= warm {
            sent.insert(event.id.as_str().to_owned(), due);
        }

        sending.push(tokio::spawn(send(event)));
    }

    for one in sending {
        one.await.context("a sender panicked")??;
    }

    Ok(sent)
}

/// Returns the times from due to heard, in milliseconds, ascending.
pub(super) fn spans(sent: &HashMap<String, Instant>, heard: &HashMap<String, Instant>) -> Vec<f64> {
    let pairs = sent.iter().filter_map(|(event, at)| Some((at, heard.get(event)?)));
    let mut spans: Vec<f64> = pairs
        .map(|(at, then)| then.saturating_duration_since(*at).as_secs_f64() * 1e3)
        .collect();
    spans.sort_by(f64::total_cmp);
    spans
}
