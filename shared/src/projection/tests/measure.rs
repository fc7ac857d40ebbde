//! How fast a read model is made anew and searched. Prints; asserts only that what must be found is found.
//!
//! A thousand events in the usual run. The figures of `docs/performance.md`:
//! `NEXUS_MEASURE=10000,100000,1000000 cargo test -p shared --release projection::tests::measure -- --nocapture`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Case;
use super::samples::{at, stored};
use crate::clock::{Clock, SystemClock, pause};
use crate::embed::{STATIC_MODEL, StaticModel};
use crate::model::event::{Event, EventId};
use crate::projection::Applied;
use crate::projection::api::SearchRequest;
use crate::projection::search::keep;

/// Messages in a batch, as the feed makes them.
const BATCH: u64 = 500;

/// Channels that events are spread over.
const CHANNELS: [&str; 5] = ["imessage", "email", "slack", "telegram", "webhook"];

/// Queries of one kind.
const QUERIES: usize = 50;

#[expect(
    clippy::disallowed_methods,
    reason = "the measurement's size is asked for where it is started"
)]
fn sizes() -> Vec<u64> {
    let asked = std::env::var("NEXUS_MEASURE").unwrap_or_else(|_| "1000".to_owned());
    asked.split(',').map(|size| size.parse().unwrap()).collect()
}

/// Texts of the labelled set, their words drawn anew for every event: 12 words that a person might write.
struct Texts(Vec<String>);

impl Texts {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/search.json");
        let set: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let texts = set["documents"].as_array().unwrap().iter();
        let words = texts.flat_map(|document| document[2].as_str().unwrap().split_whitespace().map(str::to_owned));
        Self(words.collect())
    }

    fn event(&self, n: u64) -> Event {
        let word = |at: u64| {
            let mixed = (n * 12 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            self.0[mixed as usize % self.0.len()].as_str()
        };
        let channel = CHANNELS[n as usize % CHANNELS.len()];
        let id = EventId::parse(format!("{channel}:{n}")).unwrap();
        let mut event = Event::new(id, channel, &format!("peer-{}", n % 1_000), at(n));
        event.from.id = format!("+1555{:04}", n % 1_000);
        event.content = (0..12)
            .map(word)
            .chain([format!("n{n}").as_str()])
            .collect::<Vec<_>>()
            .join(" ");
        event
    }
}

fn seconds(began: Instant) -> f64 {
    SystemClock.monotonic().duration_since(began).as_secs_f64()
}

async fn rebuild(texts: &Texts, count: u64) -> Case {
    let case = Case::new();
    let mut spent = 0.0;
    for first in (1..=count).step_by(BATCH as usize) {
        let batch: Vec<Applied> = (first..(first + BATCH).min(count + 1))
            .map(|n| stored(n, texts.event(n)))
            .collect();
        let began = SystemClock.monotonic();
        case.projection.apply(batch).await.unwrap();
        spent += seconds(began);
    }
    println!(
        "{count} events projected, people and words with them: {:.0} a second",
        count as f64 / spent
    );
    case
}

async fn ask(case: &Case, what: &str, request: impl Fn(usize) -> SearchRequest) {
    let mut took = Vec::new();
    for n in 0..QUERIES {
        let began = SystemClock.monotonic();
        let reply = case.projection.search(request(n)).await.unwrap();
        took.push(seconds(began) * 1e3);
        assert!(reply.hits.iter().all(|hit| hit.score <= 1.0));
    }
    took.sort_by(f64::total_cmp);
    println!(
        "  {what}: p50 {:.2} ms, p95 {:.2} ms, most {:.2} ms",
        took[QUERIES / 2],
        took[QUERIES * 95 / 100],
        took[QUERIES - 1]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projecting_and_searching() {
    let texts = Texts::new();
    for count in sizes() {
        let case = rebuild(&texts, count).await;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../.tools/models")
            .join(STATIC_MODEL);
        if folder.is_dir() {
            let began = SystemClock.monotonic();
            let model = Arc::new(StaticModel::load(&folder).unwrap());
            println!("  the model is loaded in {:.2} s", seconds(began));
            let began = SystemClock.monotonic();
            let keeping = tokio::spawn(keep::run(case.projection.clone(), model, Arc::new(SystemClock)));
            while (case.projection.vectors() as u64) < count {
                pause(Duration::from_millis(20)).await;
            }
            println!(
                "  {:.0} events embedded a second, half of the time at rest",
                count as f64 / seconds(began)
            );
            search(&case, &texts, count).await;
            keeping.abort();
        } else {
            search(&case, &texts, count).await;
        }
    }
}

async fn search(case: &Case, texts: &Texts, count: u64) {
    let words = |n: usize, some: usize| {
        let content = texts.event(1 + (n as u64 * 7_919) % count).content;
        content.split_whitespace().take(some).collect::<Vec<_>>().join(" ")
    };
    let query = |text: String| SearchRequest {
        query: text,
        ..SearchRequest::default()
    };
    ask(case, "two words", |n| query(words(n, 2))).await;
    ask(case, "five words", |n| query(words(n, 5))).await;
    ask(case, "five words, one channel, the last tenth of the time", |n| {
        SearchRequest {
            channels: Some(vec!["email".to_owned()]),
            since: Some(at(count - count / 10)),
            ..query(words(n, 5))
        }
    })
    .await;
    let rare = case.projection.search(query(format!("n{count}"))).await.unwrap();
    assert_eq!(rare.hits[0].event_id, texts.event(count).id);
}
