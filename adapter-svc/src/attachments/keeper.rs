//! What follows: files that were not there in time, and files that are kept no longer.
//!
//! One replica at a time does it, by the lease of the task. Another one that does it too does no harm: a file is stored
//! under the hash of its bytes, and the event that says so has an id that follows from its content.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::attachments::AttachmentStore;
use shared::bus::{KvEntry, TaskLease};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::model::event::{AttachmentState, Event, EventDirection, RefusedAttachment};
use shared::process::{Health, ShutdownSignal};
use shared::retry::RetrySchedule;
use shared::wire::headers::TraceCarrier;

use super::fetcher::{AttachmentFetcher, NOTED_FOR, has_open_files};
use super::plan::is_open;
use crate::intake::EventIntake;

/// Name of the task's lease.
pub const TASK: &str = "attachments";
/// Interval in which the lease is held and open files are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Number of looks between two measurements of the bucket.
const MEASURE_EVERY: u64 = 15;
/// Number of looks between two sweeps of the bucket.
const SWEEP_EVERY: u64 = 1_800;
/// Maximum number of events whose files are fetched in a round.
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
/// Age of an event from which its open files are given up in any case, in milliseconds.
const GIVEN_UP_AFTER_MS: i64 = 12 * 3_600_000;
/// Age of an event from which it is stored in any case, in milliseconds: its platform has handed it over again. It is half
/// of the time for which the server recognises a second copy.
const STORED_WITHIN_MS: i64 = 1_800_000;
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

/// Rounds of an event in which a file was not fetched.
#[derive(Debug, Clone, Copy, Default)]
struct FailedRounds {
    count: u32,
    /// Looks to be left out before the next round.
    wait: u64,
}

impl AttachmentKeeper {
    /// Looks after the files until `shutdown`.
    pub async fn keep(mut self, shutdown: ShutdownSignal) {
        let (mut looks, mut failed) = (0_u64, BTreeMap::new());
        loop {
            tokio::select! {
                () = shutdown.requested() => break,
                () = pause(LOOK_EVERY) => {}
            }
            match self.lease.hold().await {
                Ok(true) => {}
                Ok(false) => {
                    failed.clear();
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
                round.follow_up(&mut failed).await;
                if looks.is_multiple_of(MEASURE_EVERY) {
                    measure(fetcher.store(), health).await;
                }
                if looks.is_multiple_of(SWEEP_EVERY) {
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
            looks += 1;
        }
        self.lease.give_back().await;
    }
}

/// One look at the events with open files.
struct KeeperRound<'a> {
    fetcher: &'a AttachmentFetcher,
    intake: &'a EventIntake,
    clock: &'a SharedClock,
}

impl KeeperRound<'_> {
    async fn follow_up(&self, failed: &mut BTreeMap<String, FailedRounds>) {
        let noted = match self.fetcher.fetches().entries().await {
            Ok(noted) => noted,
            Err(error) => {
                tracing::debug!(error = describe_error(&error), "failed to look for open files");
                return;
            }
        };
        failed.retain(|key, _| noted.iter().any(|(noted, _)| noted == key));

        let mut due = Vec::new();
        for (key, entry) in noted {
            let rounds = failed.entry(key.clone()).or_default();
            rounds.wait = rounds.wait.saturating_sub(1);
            if rounds.wait == 0 && self.fetcher.knows(&entry.value) && due.len() < MAX_EVENTS {
                due.push((key, entry));
            }
        }
        if due.is_empty() {
            return;
        }

        // In one go, so that a slow file holds none of the others up.
        let mut events: Vec<Event> = due.iter().map(|(_, entry)| entry.value.clone()).collect();
        self.fetcher.fetch_late(&mut events, ROUND_WITHIN).await;

        for ((key, entry), event) in due.into_iter().zip(events) {
            let rounds = failed.entry(key.clone()).or_default();
            rounds.count += 1;
            let wait = FILE_RETRY.delay(rounds.count, 0.5).unwrap_or_default();
            rounds.wait = wait.as_secs() / LOOK_EVERY.as_secs();
            self.settle(&key, &entry, event, rounds.count).await;
        }
    }

    /// Publishes `event`, whose files were fetched, or notes which of them were.
    async fn settle(&self, key: &str, entry: &KvEntry<Event>, mut event: Event, rounds: u32) {
        let now = self.clock.now();
        let is_given_up = FILE_RETRY.delay(rounds, 0.5).is_none() || now.since(event.received_at) > GIVEN_UP_AFTER_MS;
        if is_given_up {
            for file in event.attachments.iter_mut().filter(|file| is_open(file)) {
                tracing::warn!(event_id = %event.id, "file given up: the platform did not hand it out");
                file.state = AttachmentState::Refused(RefusedAttachment::Unavailable);
            }
        }

        let fetches = self.fetcher.fetches();
        if has_open_files(&event) {
            if event != entry.value {
                // Another version of the item may be there by now.
                let _ = fetches.update_ttl(key, &event, entry.revision, NOTED_FOR).await;
            }
            return;
        }

        // An edit that came meanwhile has a note of its own, or had all of its files: this version is over.
        let newest = fetches.get(key).await;
        if !newest.is_ok_and(|newest| newest.is_some_and(|newest| newest.revision == entry.revision)) {
            return;
        }
        if let Err(error) = self.publish(&entry.value, event).await {
            tracing::warn!(
                key,
                error,
                "failed to publish an event whose files were fetched; retrying"
            );
            return;
        }
        let _ = fetches.delete(key, Some(entry.revision)).await;
    }

    async fn publish(&self, noted: &Event, mut event: Event) -> Result<(), String> {
        let is_change = match noted.direction {
            EventDirection::Updated | EventDirection::Deleted => true,
            EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => {
                false
            }
        };
        event.direction = EventDirection::Updated;
        event.received_at = self.clock.now();

        // A process that was killed may have noted the event and not stored it. A second copy is recognised by its id.
        let is_recent = event.received_at.since(noted.received_at) < STORED_WITHIN_MS;
        let first = (!is_change && is_recent).then(|| noted.clone());
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
