//! Prints how fast rows are written; asserts only that they are there.
//!
//! `cargo test -p shared --release projection::tests::speed -- --nocapture`

use std::time::Instant;

use super::Case;
use super::samples::{self, chain, event, stored};
use crate::clock::{Clock, SystemClock};
use crate::projection::{AppliedRecord, FeedSource};

/// Number of messages in a batch, as in the feed.
const BATCH: usize = 500;

async fn take_in(case: &Case, what: &str, all: Vec<AppliedRecord>) {
    let count = all.len();
    let batches: Vec<Vec<AppliedRecord>> = all.chunks(BATCH).map(<[AppliedRecord]>::to_vec).collect();
    let (began, spent) = (SystemClock.monotonic(), cpu_seconds());

    for batch in batches {
        case.projection.apply(batch).await.unwrap();
    }

    let took = SystemClock.monotonic().duration_since(began).as_secs_f64();
    let cpu = cpu_seconds() - spent;
    let rate = count as f64 / took;
    println!(
        "{what}: {count} messages, {rate:.0}/s, {:.1} us of CPU each",
        1e6 * cpu / count as f64
    );
}

#[tokio::test]
async fn messages_per_second() {
    let scale: u64 = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    let big = |n| {
        let mut event = event(n);
        event.content = "x".repeat(1024);
        stored(n, event)
    };

    let case = Case::new();
    take_in(&case, "events of 1 KiB", (1..=scale).map(big).collect()).await;
    let began = SystemClock.monotonic();

    for n in 1..=scale {
        assert!(
            case.projection
                .is_first(&samples::event_id(n + scale), n + scale)
                .unwrap()
        );
    }

    println!("is_first, new ids: {:.3} us each", per(began, scale));
    let began = SystemClock.monotonic();

    for n in 1..=scale {
        assert!(case.projection.is_first(&samples::event_id(n), n).unwrap());
    }

    println!("is_first, known ids: {:.3} us each", per(began, scale));

    let case = Case::new();
    let small: Vec<AppliedRecord> = (1..=scale).map(|n| stored(n, event(n))).collect();
    take_in(&case, "small events", small).await;
    let case = Case::new();
    let chains: Vec<AppliedRecord> = (1..=scale / 2).flat_map(chain).collect();
    take_in(&case, "whole chains (7 messages an event)", chains).await;

    assert_eq!(case.projection.position(FeedSource::Ledger), scale / 2);
}

fn per(began: Instant, count: u64) -> f64 {
    let count = count as f64;
    SystemClock.monotonic().duration_since(began).as_secs_f64() * 1e6 / count
}

/// Returns the processor time of all threads so far, which is what matters if the machine is busy with other work.
fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 / 1e9
}
