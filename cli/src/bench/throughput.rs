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
use super::traffic::{StreamTraffic, TrafficMark, sum_of};

/// Number of events in one request.
const BATCH: u64 = 100;
/// Number of requests in flight.
const SENDERS: u64 = 8;
/// Streams whose messages are counted as stored.
pub(super) const STORED: [&str; 7] = [
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
    pub(super) stored_by_stream: Vec<StreamTraffic>,
    pub(super) repeated: u64,
}

/// Answers to a flood.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    /// Events per second, from the first post to the last answer.
    pub(super) events_per_s: f64,
    /// Number of answers that were received a second time.
    pub(super) repeated: u64,
}

pub(super) async fn run(stack: &Stack, options: &BenchOptions) -> Result<Flood> {
    let bus = stack.bus("nexus-bench").await?;
    let before = TrafficMark::read(stack, &bus).await?;
    let meter = Meter::start(stack);

    let answered = send_flood(stack, "flood", options).await?;
    let cpu = meter.stop(stack);
    let events = options.events as f64;
    let traffic = TrafficMark::read(stack, &bus).await?.since(&before, events);

    Ok(Flood {
        events_per_s: answered.events_per_s,
        cpu_ms_per_event: cpu.iter().map(|(_, ms)| ms).sum::<f64>() / events,
        cpu_by_process: cpu.into_iter().map(|(name, ms)| (name, ms / events)).collect(),
        stored_per_event: sum_of(&traffic.streams, &STORED),
        stored_by_stream: traffic.streams,
        repeated: answered.repeated,
    })
}

/// Posts `options.events` events of run `run` as fast as they are accepted, and waits until each is answered.
pub(super) async fn send_flood(stack: &Stack, run: &'static str, options: &BenchOptions) -> Result<Answered> {
    let bus = stack.bus("nexus-bench").await?;
    let mut answers = Answers::listen(&bus, "nexus.out.bench.*").await?;
    let sender = Sender::new(stack)?;
    let began = SystemClock.monotonic();
    let posting = tokio::spawn(post_all(sender, run, options.clone()));

    let event_of = |message: &shared::bus::CoreMessage| message.headers.get(CAUSATION).map(str::to_owned);
    answers.until(options.events, event_of).await?;
    let ended = answers.heard.values().copied().max().unwrap_or(began);
    posting.await.context("a sender panicked")??;

    Ok(Answered {
        events_per_s: options.events as f64 / seconds(began, ended),
        repeated: answers.repeated,
    })
}

/// Posts `options.events` events of run `run` as fast as they are accepted, and returns once all are.
pub(super) async fn post_all(sender: Sender, run: &'static str, options: BenchOptions) -> Result<()> {
    let mut posting = Vec::new();
    for lane in 0..SENDERS {
        posting.push(tokio::spawn(post_lane(sender.clone(), options.clone(), run, lane)));
    }

    for lane in posting {
        lane.await.context("a sender panicked")??;
    }

    Ok(())
}

/// Posts the events of every `SENDERS`th session, so that the events of one session are posted in order.
async fn post_lane(sender: Sender, options: BenchOptions, run: &str, lane: u64) -> Result<()> {
    let sessions = options.sessions.max(1);
    let mine = (0..options.events).filter(|number| number % sessions % SENDERS == lane);

    let mut batch = Vec::new();
    for number in mine {
        batch.push(setting::event(run, number, &options, SystemClock.now())?);
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
