//! What follows: files that were not there in time, and files that are kept no longer.
//!
//! One replica at a time does it, by the lease of the task. Another one that does it too does no harm: a file is stored
//! under the hash of its bytes, and the event that says so has an id that follows from its content.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use shared::attachments::AttachmentStore;
use shared::bus::TaskLease;
use shared::clock::{Clock as _, SharedClock, SystemClock, pause};
use shared::error_chain::describe_error;
use shared::model::event::{Attachment, Event, EventDirection, RefusedAttachment};
use shared::process::{Health, ShutdownSignal};
use shared::retry::RetrySchedule;
use shared::wire::headers::TraceCarrier;

use super::fetcher::{AttachmentFetcher, has_open_files, is_change, refuse_open};
use super::note::{CLAIM_LASTS, NotedEvent};
use crate::intake::EventIntake;

/// Name of the task's lease.
pub const TASK: &str = "attachments";
/// Interval in which the lease is held and open files are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time between two measurements of the bucket.
const MEASURE_EVERY: Duration = Duration::from_secs(30);
/// Time between two sweeps of the bucket.
const SWEEP_EVERY: Duration = Duration::from_hours(1);
/// Time between two looks at a key without a note.
const GONE_EVERY: Duration = Duration::from_secs(30);
/// Time between two looks at a note of an account that this process does not have.
const FOREIGN_EVERY: Duration = Duration::from_mins(10);
/// Maximum number of notes that are read, and of events whose files are fetched, in a round.
const MAX_EVENTS: usize = 32;
/// Maximum time for the files of a round.
const ROUND_WITHIN: Duration = Duration::from_mins(4);
/// Waits after rounds in which a file was not fetched. It is given up about half an hour after the first one.
const FILE_RETRY: RetrySchedule = RetrySchedule {
    initial_ms: 4_000,
    max_ms: 3_600_000,
    factor: 2.0,
    max_attempts: 10,
    jitter: 0.0,
};
/// Wait of a file for which there is no room, after those of [`FILE_RETRY`].
const FULL_EVERY: Duration = Duration::from_mins(30);
/// Age of an event from which its open files are given up in any case, in milliseconds.
const GIVEN_UP_AFTER_MS: i64 = 24 * 3_600_000;
/// Age of an event from which it is stored in any case, in milliseconds: its platform has handed it over again. It is half
/// of the time for which the server recognises a second copy.
const STORED_WITHIN_MS: i64 = 1_800_000;
/// Maximum time for publishing an event whose note is claimed.
const PUBLISH_WITHIN: Duration = CLAIM_LASTS.saturating_sub(Duration::from_secs(1));
/// Part of the bucket that is used when an operator is told, in percent.
const WARN_AT_PERCENT: u64 = 80;
/// Name of the bucket's state in `/readyz`.
const PART: &str = "attachments";

/// Keeps the files of events.
#[derive(Debug)]
pub struct AttachmentKeeper {
    /// Fetcher of the files.
    pub fetcher: AttachmentFetcher,
    /// Way to JetStream.
    pub intake: EventIntake,
    /// Clock of the process.
    pub clock: SharedClock,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Lease of the task.
    pub lease: TaskLease,
}

/// What this process has done for a note.
#[derive(Debug, Default)]
struct NoteProgress {
    /// Rounds in which a file was not fetched.
    rounds: u32,
    /// Time of the next round; `None` = now.
    next: Option<Instant>,
    /// Revision to which `files` belong.
    revision: u64,
    /// Files as far as they were fetched. The note keeps what the platform said.
    files: Vec<Attachment>,
}

/// Times of the next measurement and of the next sweep.
#[derive(Debug, Default)]
struct NextChores {
    measure: Option<Instant>,
    sweep: Option<Instant>,
}

impl AttachmentKeeper {
    /// Looks after the files until `shutdown`.
    pub async fn keep(mut self, shutdown: ShutdownSignal) {
        let (mut progress, mut chores) = (BTreeMap::new(), NextChores::default());
        loop {
            tokio::select! {
                () = shutdown.requested() => break,
                () = pause(LOOK_EVERY) => {}
            }
            match self.lease.hold().await {
                Ok(true) => {}
                Ok(false) => {
                    progress.clear();
                    self.health.set(PART, true, "another replica looks after the files");
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to ask for the lease of the files");
                    continue;
                }
            }

            let Self {
                fetcher,
                intake,
                clock,
                health,
                lease,
            } = &mut self;
            let round = KeeperRound { fetcher, intake, clock };
            let work = async {
                round.follow_up(&mut progress).await;
                if is_due(&mut chores.measure, MEASURE_EVERY) {
                    measure(fetcher.store(), health).await;
                }
                if is_due(&mut chores.sweep, SWEEP_EVERY) {
                    sweep(fetcher.store()).await;
                }
            };
            let held = async {
                loop {
                    pause(LOOK_EVERY).await;
                    if !lease.hold().await.unwrap_or(false) {
                        return;
                    }
                }
            };
            tokio::select! {
                () = work => {}
                () = held => {}
                () = shutdown.requested() => break,
            }
        }
        self.lease.give_back().await;
    }
}

/// Returns whether `next` has come, and sets it to one `interval` from now if so.
fn is_due(next: &mut Option<Instant>, interval: Duration) -> bool {
    // As [`pause`]: a round takes as long as the platforms do, whatever the clock of the process says.
    let now = SystemClock.monotonic();
    let due = next.is_none_or(|next| next <= now);
    if due {
        *next = Some(now + interval);
    }
    due
}

/// One look at the events with open files.
struct KeeperRound<'a> {
    fetcher: &'a AttachmentFetcher,
    intake: &'a EventIntake,
    clock: &'a SharedClock,
}

impl KeeperRound<'_> {
    async fn follow_up(&self, progress: &mut BTreeMap<String, NoteProgress>) {
        let keys: BTreeSet<String> = match self.fetcher.notes().list_keys().await {
            Ok(keys) => keys.into_iter().collect(),
            Err(error) => {
                tracing::debug!(error = describe_error(&error), "failed to look for open files");
                return;
            }
        };
        progress.retain(|key, _| keys.contains(key));

        let now = SystemClock.monotonic();
        let next = |key: &String| progress.get(key).and_then(|known| known.next);
        let mut due: Vec<String> = keys
            .into_iter()
            .filter(|key| next(key).is_none_or(|next| next <= now))
            .collect();
        // Those that wait longest first; a key that was never read has waited since it was written.
        due.sort_by_key(next);
        due.truncate(MAX_EVENTS);

        let mut noted = Vec::new();
        for key in due {
            match self.fetcher.notes().read(&key).await {
                Ok(Some(found)) => noted.push(found),
                // A marker says for a while that it is gone.
                Ok(None) => progress.entry(key).or_default().next = Some(now + GONE_EVERY),
                Err(error) => {
                    tracing::debug!(error = describe_error(&error), "failed to read a note of files");
                    return;
                }
            }
        }

        // In one go, so that a slow file holds none of the others up.
        let mut events: Vec<Event> = noted.iter().map(|noted| continue_event(noted, progress)).collect();
        let full = self.fetcher.fetch_late(&mut events, ROUND_WITHIN).await;
        for (place, (noted, event)) in noted.into_iter().zip(events).enumerate() {
            let known = progress.entry(noted.key.clone()).or_default();
            self.settle(noted, event, full.contains(&place), known).await;
        }
    }

    /// Publishes `event`, whose files were fetched, or remembers which of them were. `is_full` says that one of them found no
    /// room.
    async fn settle(&self, noted: NotedEvent, mut event: Event, is_full: bool, known: &mut NoteProgress) {
        // A later version of the item has rounds of its own.
        if known.revision != noted.revision {
            *known = NoteProgress::default();
        }

        let is_old = self.clock.now().since(event.received_at) > GIVEN_UP_AFTER_MS;
        let is_known = self.fetcher.knows(&event);
        known.rounds += u32::from(is_known);
        let wait = FILE_RETRY.delay(known.rounds, 0.5);
        // An operator may make room, or another replica have the account.
        let is_given_up = is_old || (is_known && !is_full && wait.is_none());
        if is_given_up && has_open_files(&event) {
            tracing::warn!(event_id = %event.id, is_full, "files given up");
            let why = if is_full {
                RefusedAttachment::Full
            } else {
                RefusedAttachment::Unavailable
            };
            refuse_open(&mut event, why);
        }

        known.revision = noted.revision;
        known.files.clone_from(&event.attachments);
        let wait = if is_known {
            wait.unwrap_or(FULL_EVERY)
        } else {
            FOREIGN_EVERY
        };
        known.next = Some(SystemClock.monotonic() + wait);
        if has_open_files(&event) {
            return;
        }

        // An edit that came meanwhile has a note of its own, or has removed this one: this version is over. One that comes
        // from now on waits until this version is published.
        let claimed = match self.fetcher.notes().claim(&noted).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::debug!(
                    key = noted.key,
                    error = describe_error(&error),
                    "note of files not claimed"
                );
                return;
            }
        };
        known.revision = claimed;
        let published = tokio::time::timeout(PUBLISH_WITHIN, self.publish(&noted.event, event)).await;
        if let Err(error) = published.unwrap_or_else(|_| Err("the stream did not answer in time".to_owned())) {
            tracing::warn!(
                key = noted.key,
                error,
                "failed to publish an event whose files were fetched; retrying"
            );
            match self.fetcher.notes().release(&noted, claimed).await {
                Ok(released) => known.revision = released,
                Err(error) => tracing::debug!(error = describe_error(&error), "claim of a note not ended"),
            }
            return;
        }
        if let Err(error) = self.fetcher.notes().remove(&noted.key, claimed).await {
            tracing::debug!(
                key = noted.key,
                error = describe_error(&error),
                "failed to remove a note of files"
            );
        }
    }

    async fn publish(&self, noted: &Event, mut event: Event) -> Result<(), String> {
        event.direction = EventDirection::Updated;
        event.received_at = self.clock.now();

        // A process that was killed may have noted the event and not stored it. A second copy is recognised by its id.
        let is_recent = event.received_at.since(noted.received_at) < STORED_WITHIN_MS;
        let first = (!is_change(noted) && is_recent).then(|| noted.clone());
        let events: Vec<Event> = first.into_iter().chain([event]).collect();
        for event in events {
            let stored = self
                .intake
                .accept_events(TASK, &[event], &TraceCarrier::default())
                .await;
            stored.map_err(|error| describe_error(&error))?;
        }
        Ok(())
    }
}

/// Returns the event of `noted` with the files that were fetched in earlier rounds.
fn continue_event(noted: &NotedEvent, progress: &BTreeMap<String, NoteProgress>) -> Event {
    let mut event = noted.event.clone();
    let known = progress.get(&noted.key);
    if let Some(known) = known.filter(|known| known.revision == noted.revision && !known.files.is_empty()) {
        event.attachments.clone_from(&known.files);
    }
    event
}

/// Reports the space of the bucket.
async fn measure(store: &AttachmentStore, health: &Health) {
    let Ok(space) = store.space().await else { return };
    let max = space.max.unwrap_or(u64::MAX);
    metrics::gauge!("nexus_attachments_bytes").set(space.used as f64);
    metrics::gauge!("nexus_attachments_max_bytes").set(max as f64);

    let percent = u64::try_from(u128::from(space.used) * 100 / u128::from(max)).unwrap_or(100);
    let state = format!("{} of {max} bytes ({percent} %)", space.used);
    if percent >= WARN_AT_PERCENT {
        tracing::warn!(state, "the object store of attachments is filling up");
        health.set_degraded(PART, &state);
    } else {
        health.set(PART, true, state);
    }
}

async fn sweep(store: &AttachmentStore) {
    match store.sweep().await {
        Ok(swept) if swept.expired + swept.unfinished == 0 => {}
        Ok(swept) => tracing::info!(
            expired = swept.expired,
            unfinished = swept.unfinished,
            "removed files of messages"
        ),
        Err(error) => tracing::warn!(error = describe_error(&error), "failed to sweep the files of messages"),
    }
}
