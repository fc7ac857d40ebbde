//! `nexus bench read-model`: how fast the read model is built from a stream's events, and how soon `search()` answers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::embed::{self, TextEmbedder};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;
use shared::projection::api::SearchRequest;
use shared::projection::search::keep;
use shared::projection::{AppliedRecord, Projection};

use super::{percentile, step};
use crate::args::{BenchReadModelOptions, Common};
use crate::output::{Column, Table, View};

/// Number of messages in a batch, about as many as hook-svc takes if many wait.
const BATCH: u64 = 2_000;
/// Channels over which events are spread.
const CHANNELS: [&str; 5] = ["imessage", "email", "slack", "telegram", "webhook"];
/// Number of people and conversations over which events are spread.
const PEERS: u64 = 1_000;
/// Number of words of an event.
const WORDS: u64 = 12;
/// Syllables, of which two make a word: some words are a hundred times as frequent as others.
const SYLLABLES: [&str; 32] = [
    "ba", "ko", "li", "mer", "tun", "sa", "vel", "dor", "pi", "gra", "ne", "shu", "ol", "fin", "ka", "res", "tor",
    "mi", "lan", "bu", "qui", "ze", "hal", "or", "pe", "vin", "sto", "ru", "cha", "wen", "ja", "il",
];
/// Time of the first event.
const BEGINNING: UnixMillis = UnixMillis(1_769_000_000_000);
/// Number of queries of each kind.
const QUERIES: u64 = 100;
/// Number of events that the model alone embeds first.
const ALONE: u64 = 128;

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Latency {
    p50_ms: f64,
    p95_ms: f64,
}

/// Figures of a read model of one size.
#[derive(Debug, Serialize)]
struct Row {
    events: u64,
    /// Events per second that are taken in, with people and words.
    rows_per_s: f64,
    /// Texts per second that the model alone embeds, without a rest. `None` without a model: `search()` goes by words
    /// then.
    model_per_s: Option<f64>,
    /// Texts per second that are embedded behind the read model, at the pace that leaves half of a processor to other
    /// work. `None` without a model.
    embedded_per_s: Option<f64>,
    two_words: Latency,
    five_words: Latency,
    /// Latency of five words, one channel, the last tenth of the time.
    filtered: Latency,
    file_mib: f64,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be written, or if a query does not find its event.
pub(super) async fn execute(common: &Common, options: &BenchReadModelOptions) -> Result<()> {
    let model = match &options.model {
        Some(folder) => Some(embed::open(folder)?),
        None => None,
    };
    let mut rows = Vec::new();
    for &events in &options.events {
        ensure!(events >= 100, "--events: expected at least 100");
        rows.push(row(events, model.clone()).await?);
    }

    View::list(&rows, figure_table(&rows))?
        .line("search: p50 / p95")
        .show(common)
}

async fn row(events: u64, model: Option<Arc<dyn TextEmbedder>>) -> Result<Row> {
    let bar = step(&format!("{events} events are taken in"));
    let folder = tempfile::tempdir().context("failed to create a temporary directory")?;
    let projection = Projection::open(&folder.path().join("read-model.sqlite"))?;
    let rows_per_s = events as f64 / take_in(&projection, events).await?;
    let (mut model_per_s, mut embedded_per_s) = (None, None);

    let keeping = match model {
        None => None,
        Some(model) => {
            bar.set_message(format!("{events} events are embedded"));
            model_per_s = Some(alone(&*model, events.min(ALONE)).await?);
            let began = SystemClock.monotonic();
            let keeping = tokio::spawn(keep::run(projection.clone(), model, Arc::new(SystemClock)));

            while (projection.vector_count() as u64) < events {
                pause(Duration::from_millis(20)).await;
            }
            embedded_per_s = Some(events as f64 / seconds(began));

            Some(keeping)
        }
    };

    bar.set_message(format!("{events} events are searched"));
    let some = |n: u64, words: u64| text(1 + (n * 7_919) % events, words);
    let two_words = ask(&projection, |n| query(some(n, 2))).await?;
    let five_words = ask(&projection, |n| query(some(n, 5))).await?;
    let filtered = |n| SearchRequest {
        channels: Some(vec!["email".to_owned()]),
        since: Some(at(events - events / 10)),
        ..query(some(n, 5))
    };

    let filtered = ask(&projection, filtered).await?;
    let last = projection.search(query(format!("n{events}"))).await?;
    let is_found = last.hits.first().is_some_and(|hit| hit.event_id.as_str() == id(events));
    ensure!(is_found, "the last event is not found by its own word");

    if let Some(keeping) = keeping {
        keeping.abort();
    }

    projection.close().await;
    bar.finish_and_clear();

    Ok(Row {
        events,
        rows_per_s,
        model_per_s,
        embedded_per_s,
        two_words,
        five_words,
        filtered,
        file_mib: size_mib(projection.path()),
    })
}

/// Takes in all events, and returns the seconds that the writer took.
pub(super) async fn take_in(projection: &Projection, events: u64) -> Result<f64> {
    let mut took = 0.0;
    for first in (1..=events).step_by(BATCH as usize) {
        let batch = first..(first + BATCH).min(events + 1);
        let batch = batch.map(stored).collect::<Result<Vec<_>>>()?;
        let began = SystemClock.monotonic();
        projection.apply(batch).await?;
        took += seconds(began);
    }
    Ok(took)
}

/// Returns the texts per second of `model`, in calls of the size that it prefers.
async fn alone(model: &dyn TextEmbedder, events: u64) -> Result<f64> {
    let texts: Vec<String> = (1..=events).map(content).collect();
    let began = SystemClock.monotonic();
    for texts in texts.chunks(model.batch()) {
        model.embed(texts.to_vec()).await?;
    }
    Ok(events as f64 / seconds(began))
}

async fn ask(projection: &Projection, request: impl Fn(u64) -> SearchRequest) -> Result<Latency> {
    let mut took = Vec::new();
    for number in 0..QUERIES {
        let began = SystemClock.monotonic();
        projection.search(request(number)).await?;
        took.push(seconds(began) * 1e3);
    }

    took.sort_by(f64::total_cmp);
    Ok(Latency {
        p50_ms: percentile(&took, 0.5),
        p95_ms: percentile(&took, 0.95),
    })
}

fn query(text: String) -> SearchRequest {
    SearchRequest {
        query: text,
        ..SearchRequest::default()
    }
}

fn seconds(since: Instant) -> f64 {
    SystemClock.monotonic().duration_since(since).as_secs_f64()
}

fn at(number: u64) -> UnixMillis {
    BEGINNING.plus(i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(1_000))
}

fn channel(number: u64) -> &'static str {
    CHANNELS[(number % CHANNELS.len() as u64) as usize]
}

/// Returns the id of event `number`.
pub(super) fn id(number: u64) -> String {
    format!("{}:{number}", channel(number))
}

/// Returns the first `words` words of event `number`, drawn separately for each event.
fn text(number: u64, words: u64) -> String {
    let word = |at: u64| {
        let mixed = (number * WORDS + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rare = |bits: u64| ((bits & 31) * (bits >> 5 & 31) / 31) as usize;
        format!("{}{}", SYLLABLES[rare(mixed >> 40)], SYLLABLES[rare(mixed >> 50)])
    };
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the text of event `number`: words, and one that no other event has.
fn content(number: u64) -> String {
    format!("{} n{number}", text(number, WORDS))
}

fn stored(number: u64) -> Result<AppliedRecord> {
    let id = EventId::parse(id(number)).context("failed to create an event id")?;
    let mut event = Event::new(id, channel(number), &format!("peer-{}", number % PEERS), at(number));
    event.from.id = format!("+1555{:04}", number % PEERS);
    event.content = content(number);
    Ok(AppliedRecord::Event {
        sequence: number,
        published_at: at(number),
        event: Arc::new(event),
    })
}

fn size_mib(path: &Path) -> f64 {
    std::fs::metadata(path).map_or(0.0, |file| file.len() as f64 / f64::from(1 << 20))
}

/// Returns the figures of all sizes.
fn figure_table(rows: &[Row]) -> Table {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "no model".to_owned(), |rate| format!("{rate:.0}/s"));
    let latency = |latency: Latency| format!("{:.1} / {:.1} ms", latency.p50_ms, latency.p95_ms);

    let columns = [
        Column::number("EVENTS"),
        Column::text("INDEXED"),
        Column::text("MODEL ALONE"),
        Column::text("EMBEDDED"),
        Column::text("TWO WORDS"),
        Column::text("FIVE WORDS"),
        Column::text("FIVE WORDS, ONE CHANNEL, LAST TENTH"),
        Column::text("FILE"),
    ];
    Table::new(&columns).with(rows, |row| {
        [
            row.events.into(),
            format!("{:.0}/s", row.rows_per_s).into(),
            rate(row.model_per_s).into(),
            rate(row.embedded_per_s).into(),
            latency(row.two_words).into(),
            latency(row.five_words).into(),
            latency(row.filtered).into(),
            format!("{:.0} MiB", row.file_mib).into(),
        ]
    })
}
