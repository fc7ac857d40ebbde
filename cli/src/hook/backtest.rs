//! `nexus hook backtest`: runs stored events through a hook that is not active. The command only reads: it dispatches
//! and records nothing, and starts workers of its own. A hook that names `dbPath` sees the read model as it was at each
//! event.

mod history;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream};
use hook_svc::config::HooksConfig;
use hook_svc::dry_run::{DryRun, HistoryReplay, pool_config};
use hook_svc::read_model::identities;
use hook_svc::registry::metadata;
use hook_svc::runner::{HookCounters, ScriptHost};
use indicatif::{ProgressBar, ProgressStyle};
use shared::bus::{Bus, IncomingMessage, OrderedReader};
use shared::clock::{Clock as _, SystemClock};
use shared::llm::LlmConfig;
use shared::model::event::{Event, EventDirection};
use shared::model::hook::{HookMetadata, HookMode};
use shared::model::hook_api::HookRun;
use shared::model::identity::Identities;
use shared::model::time::UnixMillis;
use shared::process::config::CommonConfig as Shared;
use shared::wire::rights::BusRole;
use shared::wire::seal::TrustKeys;
use shared::wire::subject::token;
use shared::wire::topology::streams::EVENTS;

use history::History;

use super::host;
use super::report::Report;
use crate::args::{BacktestOptions, Common};
use crate::connect::{connect_as, load_document};
use crate::exit::{Exit, ExitContext as _, failure};
use crate::when::parse_when;

/// Number of events in flight at once.
const WINDOW: usize = 512;

/// Number of events between two moves of the progress bar.
const STEP: u64 = 256;

pub(super) async fn run(common: &Common, options: BacktestOptions) -> Result<()> {
    let source = std::fs::read_to_string(&options.file);
    let source = source.with_context(|| format!("failed to read {}", options.file.display()));
    let source = source.exit(Exit::Usage)?;
    let since = match options.since.as_str() {
        "all" => None,
        text => Some(parse_when("--since", text, SystemClock.now())?),
    };
    let document = load_document(common);
    let config = document.section("hooks", HooksConfig::find_faults).value;
    let llm = document.section("llm", LlmConfig::find_faults).value;

    let bus = connect_as(common, BusRole::Admin).await?;
    if bus.trust().cluster_key().is_none() {
        let text = "stored events cannot be checked without the key that sealed them; set trust.cluster_key";
        return Err(failure(Exit::Usage, text));
    }

    let host = host::of(&bus, &config, &llm);
    let (files, _) = Shared::load(&document);
    let (identities, _) = identities::load(&files.files.identities, "")?;

    let question = Question {
        source,
        since,
        channel: options.channel,
        limit: options.limit,
        identities,
    };

    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{bar:40} {pos}/{len} events, {per_sec}, {eta} left, {msg} fires",
    )?);
    let report = replay(&bus, &config, host, &question, &bar).await?;
    bar.finish_and_clear();

    report.view(options.show)?.show(common)
}

/// A replay to run.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// Source of the hook's file.
    pub(super) source: String,
    /// Time of the oldest events; `None` for all events.
    pub(super) since: Option<UnixMillis>,
    /// Channel of the events; `None` for every channel.
    pub(super) channel: Option<String>,
    /// Largest number of events.
    pub(super) limit: u64,
    /// Persons of the read model, with their addresses.
    pub(super) identities: Identities,
}

/// Replays history through the hook of `question`.
///
/// # Errors
/// Fails if the file is not a hook, or if events or workers are not available.
pub(super) async fn replay(
    bus: &Bus,
    config: &HooksConfig,
    host: Arc<dyn ScriptHost>,
    question: &Question,
    bar: &ProgressBar,
) -> Result<Report> {
    let metadata = metadata::parse("backtest", &question.source)?;
    let now = SystemClock.now();
    let trial = DryRun::from_file(&metadata.name, &question.source, &metadata, now);
    let history = History::of(bus, &trial, &question.identities).await?;
    let setting = pool_config(config, &history.path(), host);
    let replay = HistoryReplay::start(setting, Arc::new(SystemClock), trial).await?;
    let begun = SystemClock.monotonic();

    let mut report = Report::default();
    let played = play(bus, &replay, &history, &metadata, question, bar, &mut report).await;
    replay.stop().await;
    history.close().await;
    played?;
    report.finish(SystemClock.monotonic().duration_since(begun));

    Ok(report)
}

async fn play(
    bus: &Bus,
    replay: &HistoryReplay,
    history: &History,
    metadata: &HookMetadata,
    question: &Question,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<()> {
    let filter = match &question.channel {
        Some(channel) => format!("nexus.ev.*.{}.>", token(channel)),
        None => "nexus.ev.>".to_owned(),
    };
    let last = bus.stream_state(EVENTS).await?.last;
    let start = match question.since {
        Some(since) => first_since(bus, last, since.0).await?,
        None => 1,
    };

    let first = bus.next_on_subject(EVENTS, &filter, start).await?;
    if first.is_none_or(|first| first.sequence > last) {
        return Ok(());
    }

    bar.set_length(last.saturating_sub(start) + 1);
    let feed = Feed {
        reader: bus.read_ordered(EVENTS, &[filter], start).await?,
        trust: Arc::clone(bus.trust()),
        last,
        left: question.limit,
        known: HashSet::new(),
    };

    // A hook that reads its own counters must see each fire before the next event, and one that reads the read model
    // must not see later events.
    let reads_counters = ["trigger_count", "last_triggered"]
        .iter()
        .any(|name| question.source.contains(name));
    let in_step = reads_counters || history.is_read();
    let runs = stream::unfold(feed, Feed::next)
        .map(|told| async move {
            let run = run_one(replay, history, &told).await;
            (told.sequence, told.event, run)
        })
        .buffered(if in_step { 1 } else { WINDOW });

    let mut runs = std::pin::pin!(runs);
    let mut counters = HookCounters::default();
    while let Some((sequence, event, run)) = runs.next().await {
        let run = run?;
        if run.fired {
            counters.trigger_count += 1;
            counters.last_triggered = counters.last_triggered.max(Some(event.timestamp));
            replay.count(counters);
            bar.set_message(counters.trigger_count.to_string());
        }

        let retires = retires(metadata, &run);
        report.take(&event, run, retires);

        if report.events.is_multiple_of(STEP) {
            bar.set_position(sequence.saturating_sub(start));
        }

        if retires {
            break;
        }
    }

    Ok(())
}

/// Runs the hook on `told`, as it would have run then.
async fn run_one(replay: &HistoryReplay, history: &History, told: &Told) -> Result<HookRun> {
    if replay.sees_event(&told.event) {
        history.bring_to(told.sequence, told.published_at).await?;
    }
    Ok(replay.run(&told.event, told.event.timestamp).await?)
}

/// Returns whether the hook sees no events after this run.
fn retires(metadata: &HookMetadata, run: &HookRun) -> bool {
    let once = match metadata.mode {
        HookMode::Persistent => false,
        HookMode::OneShot => run.fired,
    };
    once || run.result.as_ref().is_some_and(|result| result.disable_hook)
}

/// Stored events, as hooks would see them: first occurrences only, without changes of items that are known.
struct Feed {
    reader: OrderedReader,
    trust: Arc<TrustKeys>,
    last: u64,
    left: u64,
    /// Fingerprints of the ids that were seen.
    known: HashSet<u64>,
}

/// A stored event with its place in the stream.
struct Told {
    sequence: u64,
    published_at: UnixMillis,
    event: Arc<Event>,
}

impl Feed {
    async fn next(mut self) -> Option<(Told, Self)> {
        while self.left > 0 {
            let incoming: IncomingMessage = self.reader.next().await;
            if incoming.sequence > self.last {
                return None;
            }

            if incoming.pending == 0 || incoming.sequence == self.last {
                self.left = 1;
            }

            self.left -= 1;
            let Ok(event) = incoming.read_event(&self.trust) else {
                continue;
            };

            let is_shown = match event.direction {
                EventDirection::Received
                | EventDirection::Sent
                | EventDirection::Observed
                | EventDirection::Created => true,
                EventDirection::Updated | EventDirection::Deleted => false,
            };
            let mut hasher = DefaultHasher::new();
            event.id.hash(&mut hasher);

            if is_shown && self.known.insert(hasher.finish()) {
                let told = Told {
                    sequence: incoming.sequence,
                    published_at: incoming.published_at,
                    event,
                };
                return Some((told, self));
            }
        }

        None
    }
}

/// Returns the sequence of the first event that was stored at `at` (Unix milliseconds) or later.
async fn first_since(bus: &Bus, last: u64, at: i64) -> Result<u64> {
    let mut low = bus.stream_state(EVENTS).await?.first.max(1);
    let mut high = last + 1;
    while low < high {
        let middle = low + (high - low) / 2;
        // Messages that were removed lie before those that remain.
        match bus.at_sequence(EVENTS, middle).await? {
            Some(stored) if stored.published_at.0 >= at => high = middle,
            Some(_) | None => low = middle + 1,
        }
    }

    Ok(low)
}

#[cfg(test)]
mod tests;
