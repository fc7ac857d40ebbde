//! Throughput of raw JetStream on this machine: the same server, the same client, pipelined publishes of the same size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::wire::headers::Headers;
use shared::wire::topology::{Topology, topology};

use crate::args::BenchOptions;
use crate::launch::Stack;

use super::throughput::seconds;

/// Number of messages that are published.
const MESSAGES: u64 = 200_000;
/// Number of publishes in flight.
const WRITERS: u64 = 1_024;

/// Measures the messages per second.
pub(super) async fn run(stack: &Stack, options: &BenchOptions) -> Result<f64> {
    let bus = stack.bus("nexus-bench-raw").await?;
    let mut spec = topology(stack.nats.len()).streams.swap_remove(1);
    spec.name = "BENCH_RAW".to_owned();
    spec.subjects = vec!["bench.raw.*".to_owned()];

    bus.ensure_topology(
        &Topology {
            streams: vec![spec],
            consumers: Vec::new(),
        },
        true,
    )
    .await?;

    let messages = if options.durability.iter().any(|d| d == "power") {
        MESSAGES / 20
    } else {
        MESSAGES
    };
    let payload = Bytes::from(vec![b'x'; options.size]);
    let next = Arc::new(AtomicU64::new(0));

    let began = SystemClock.monotonic();
    let writers = (0..WRITERS).map(|_| {
        let (bus, payload, next) = (bus.clone(), payload.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= messages {
                    return Ok::<(), shared::bus::PublishError>(());
                }
                let out =
                    OutgoingMessage::raw(format!("bench.raw.{}", number % 1_000), Headers::new(), payload.clone());
                bus.publish(out.msg_id(number.to_string())).await?;
            }
        })
    });

    for writer in writers.collect::<Vec<_>>() {
        writer.await.context("a writer panicked")??;
    }

    Ok(messages as f64 / seconds(began, SystemClock.monotonic()))
}
