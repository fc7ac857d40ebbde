//! The flood: as many events per second as the system takes, in order, each answered once.

use std::time::Instant;

use anyhow::{Context as _, Result};
use shared::clock::{Clock as _, SystemClock};
use shared::wire::headers::CAUSATION;
use shared::wire::topology::streams;

use crate::args::BenchOptions;
use crate::launch::Stack;

use super::cpu::Meter;
use super::load::{Answers, Sender};
use super::setting;

/// Number of events in one request.
const BATCH: u64 = 100;
/// Number of requests in flight.
const SENDERS: u64 = 8;
/// Streams whose messages are counted as stored.
const STORED: [&str; 7] = [
    streams::EVENTS,
    streams::DISPATCHES,
    streams::CLAIMS,
    streams::LEDGER,
    streams::DELIVERIES,
    streams::RECEIPTS,
    streams::INVOCATIONS,
];

/// Results of the flood.
#[derive(Debug)]
pub(super) struct Flood {
    pub(super) events_per_s: f64,
    pub(super) cpu_ms_per_event: f64,
    pub(super) cpu_by_process: Vec<(String, f64)>,
    pub(super) stored_per_event: f64,
    pub(super) repeated: u64,
}

async fn stored(stack: &Stack) -> Result<u64> {
    let bus = stack.bus("nexus-bench").await?;
    let mut sum = 0;
    for name in STORED {
        sum += bus.stream_state(name).await?.last;
    }
    Ok(sum)
}

pub(super) async fn run(stack: &Stack, options: &BenchOptions) -> Result<Flood> {
    let bus = stack.bus("nexus-bench").await?;
    let mut answers = Answers::listen(&bus, "nexus.out.bench.*").await?;
    let sender = Sender::new(stack)?;
    let before = stored(stack).await?;
    let meter = Meter::start(stack);
    let began = SystemClock.monotonic();

    let mut posting = Vec::new();
    for lane in 0..SENDERS {
        posting.push(tokio::spawn(post_lane(sender.clone(), options.clone(), lane)));
    }

    let event_of = |message: &shared::bus::CoreMessage| message.headers.get(CAUSATION).map(str::to_owned);
    answers.until(options.events, event_of).await?;
    let ended = answers.heard.values().copied().max().unwrap_or(began);

    for lane in posting {
        lane.await.context("a sender panicked")??;
    }

    let cpu = meter.stop(stack);
    let after = stored(stack).await?;
    let events = options.events as f64;

    Ok(Flood {
        events_per_s: events / seconds(began, ended),
        cpu_ms_per_event: cpu.iter().map(|(_, ms)| ms).sum::<f64>() / events,
        cpu_by_process: cpu.into_iter().map(|(name, ms)| (name, ms / events)).collect(),
        stored_per_event: (after - before) as f64 / events,
        repeated: answers.repeated,
    })
}

/// Posts the events of every `SENDERS`th session, so that the events of one session are posted in order.
async fn post_lane(sender: Sender, options: BenchOptions, lane: u64) -> Result<()> {
    let sessions = options.sessions.max(1);
    let mine = (0..options.events).filter(|number| number % sessions % SENDERS == lane);

    let mut batch = Vec::new();
    for number in mine {
        batch.push(setting::event("flood", number, &options, SystemClock.now())?);
        if batch.len() as u64 == BATCH {
            sender.post(&batch).await?;
            batch.clear();
        }
    }

    if batch.is_empty() {
        Ok(())
    } else {
        sender.post(&batch).await
    }
}

pub(super) fn seconds(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64().max(1e-6)
}
