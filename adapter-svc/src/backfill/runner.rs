//! Reads the jobs of the accounts that this process has: each by the replica that holds its lease.
//!
//! A page is stored before its position is written. A replica that is killed in between, or that loses its lease, leaves the
//! last page to the next one, whose events have the same ids.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Kv, KvEvent, TaskLease};
use shared::clock::{SharedIds, pause};
use shared::error_chain::describe_error;
use shared::model::event::Event;
use shared::process::ShutdownSignal;
use shared::wire::operator::backfill::{BackfillJob, BackfillState};
use shared::wire::topology::buckets;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::TASK;
use super::accounts::BackfillAccounts;
use super::job::{end_job, give_up_conversation, note_found, note_page, note_wait, position_in, span_of};
use super::job_file::JobFile;
use crate::source::port::event_store::{AccountEvents, SinkContext, SourceFenced, TRY_AGAIN_AFTER};
use crate::source::port::history::{AccountHistory, FoundConversations, HistoryPage};
use crate::source::port::history_calls::{HistoryCalls, HistoryRefused};
use crate::source::port::merged::{MergeNotes, replace_parts, single_texts};
use crate::source::port::{apply_age_gate, strangers};
use crate::trace::EventTraces;

/// Interval in which the lease of a job is held or asked for, and the job is looked at: three times within the lease's life.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of events that are stored together.
const BATCH: usize = 100;

/// Reads the jobs.
#[derive(Debug)]
pub struct BackfillRunner {
    /// Accounts of this process.
    pub accounts: BackfillAccounts,
    /// Where events go.
    pub sink: SinkContext,
    /// Source of randomness for waits.
    pub ids: SharedIds,
    /// Name of this replica, in leases and jobs.
    pub instance: String,
    /// Minimum time between two calls for an account.
    pub interval: Duration,
}

impl BackfillRunner {
    /// Reads jobs until `shutdown`. While none runs, only the bucket is watched.
    pub async fn run(self, shutdown: ShutdownSignal) {
        let jobs: Kv<BackfillJob> = self.sink.bus.kv(buckets::BACKFILLS);
        let mut watch = jobs.watch_all();
        let runner = Arc::new(self);
        let mut woken: BTreeMap<String, Arc<Notify>> = BTreeMap::new();
        let mut tasks = JoinSet::new();

        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = shutdown.requested() => break,
            };
            let key = match event {
                KvEvent::Put { key, value, .. } if value.is_running() => key,
                KvEvent::Put { .. } | KvEvent::Gone { .. } | KvEvent::Anew | KvEvent::Current => continue,
                KvEvent::Bad { key, error, .. } => {
                    tracing::error!(key, error, "unreadable backfill");
                    continue;
                }
            };
            let Some(history) = runner.accounts.history(&key) else {
                continue;
            };

            let wake = woken.entry(key.clone()).or_insert_with(|| {
                let wake = Arc::new(Notify::new());
                let reader = JobReader {
                    runner: Arc::clone(&runner),
                    jobs: jobs.clone(),
                    lease: TaskLease::new(jobs.bus(), format!("{TASK}.{key}"), runner.instance.clone()),
                    key,
                    history,
                };
                tasks.spawn(reader.follow(Arc::clone(&wake), shutdown.clone()));
                wake
            });
            wake.notify_one();
        }

        while tasks.join_next().await.is_some() {}
    }
}

/// Reads the jobs of one account, one after the other.
struct JobReader {
    runner: Arc<BackfillRunner>,
    jobs: Kv<BackfillJob>,
    key: String,
    lease: TaskLease,
    history: Arc<dyn AccountHistory>,
}

impl JobReader {
    /// Reads each job that `wake` tells of, until `shutdown`.
    async fn follow(mut self, wake: Arc<Notify>, shutdown: ShutdownSignal) {
        while !shutdown.is_requested() {
            tokio::select! {
                () = wake.notified() => {}
                () = shutdown.requested() => break,
            }
            while !shutdown.is_requested() && self.take_turn(&shutdown).await {
                tokio::select! {
                    () = pause(LOOK_EVERY) => {}
                    () = shutdown.requested() => {}
                }
            }
            self.lease.give_back().await;
        }
        self.lease.give_back().await;
    }

    /// Reads the job as far as this replica may. Returns whether it still runs, as far as is known.
    async fn take_turn(&mut self, shutdown: &ShutdownSignal) -> bool {
        let file = match JobFile::open(&self.jobs, &self.key, self.runner.sink.clock.clone()).await {
            Ok(Some(file)) => file,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(
                    key = self.key,
                    error = describe_error(&error),
                    "failed to look for a backfill"
                );
                return true;
            }
        };
        match self.lease.hold().await {
            Ok(true) => {}
            Ok(false) => return true,
            Err(error) => {
                tracing::debug!(
                    key = self.key,
                    error = describe_error(&error),
                    "failed to ask for the lease of a backfill"
                );
                return true;
            }
        }

        let Self {
            runner, history, lease, ..
        } = self;
        let calls = HistoryCalls::new(
            history.channel(),
            history.account(),
            runner.interval,
            Arc::clone(&runner.ids),
        );
        let reading = HistoryReading {
            runner,
            history: history.as_ref(),
            calls: &calls,
            file: &file,
        };
        // The reading is dropped where it stands, with the call that is under way.
        tokio::select! {
            ended = reading.read() => ended.is_err(),
            () = keep_lease(lease, &file, &calls) => true,
            () = shutdown.requested() => true,
        }
    }
}

/// Holds `lease`, and tells what `calls` wait for, until the lease is lost or another process has changed the job.
async fn keep_lease(lease: &mut TaskLease, file: &JobFile, calls: &HistoryCalls) {
    loop {
        pause(LOOK_EVERY).await;
        if !lease.hold().await.unwrap_or(false) || !file.is_current().await {
            return;
        }
        let waits_for = calls.waits_for();
        if file.job().await.reason != waits_for
            && file.update(|job| note_wait(job, waits_for.as_deref())).await.is_err()
        {
            return;
        }
    }
}

/// A job that is being read.
struct HistoryReading<'a> {
    runner: &'a BackfillRunner,
    history: &'a dyn AccountHistory,
    calls: &'a HistoryCalls,
    file: &'a JobFile,
}

impl HistoryReading<'_> {
    /// Reads the job to its end.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if the job is not this replica's any more.
    async fn read(&self) -> Result<(), SourceFenced> {
        let (channel, account) = (self.history.channel(), self.history.account());
        let instance = &self.runner.instance;
        self.file.update(|job| job.read_by = Some(instance.clone())).await?;
        tracing::info!(channel, account, "reading a backfill");

        let found = match self.find_conversations().await {
            Ok(found) => found,
            Err(HistoryRefused(reason)) => {
                tracing::error!(channel, account, reason, "a backfill failed");
                let failed = |job: &mut BackfillJob| end_job(job, BackfillState::Failed, Some(&reason));
                return self.file.update(failed).await;
            }
        };
        let all: BTreeSet<String> = found.conversations.into_iter().collect();
        let left = self.file.update(|job| note_found(job, all, found.skipped)).await?;
        for conversation in &left {
            self.read_conversation(conversation).await?;
        }

        self.file.update(|job| end_job(job, BackfillState::Done, None)).await?;
        let job = self.file.job().await;
        let (events, skipped) = (job.events, job.skipped_count);
        tracing::info!(channel, account, events, skipped, "a backfill is done");
        Ok(())
    }

    /// Returns the conversations that the job names, or those that the account finds.
    async fn find_conversations(&self) -> Result<FoundConversations, HistoryRefused> {
        let job = self.file.job().await;
        if job.conversations.is_empty() {
            return self.history.find_conversations(span_of(&job), self.calls).await;
        }
        Ok(FoundConversations {
            conversations: job.conversations,
            skipped: Vec::new(),
        })
    }

    async fn read_conversation(&self, conversation: &str) -> Result<(), SourceFenced> {
        let job = self.file.job().await;
        let (span, mut position) = (span_of(&job), position_in(&job, conversation));
        loop {
            let read = self.history.read_page(conversation, &position, span, self.calls).await;
            let HistoryPage {
                mut events,
                passed_over,
                next,
            } = match read {
                Ok(page) => page,
                Err(HistoryRefused(reason)) => {
                    let (channel, account) = (self.history.channel(), self.history.account());
                    tracing::info!(channel, account, conversation, reason, "a history cannot be read");
                    let give_up = |job: &mut BackfillJob| give_up_conversation(job, conversation, &reason);
                    return self.file.update(give_up).await;
                }
            };

            events.retain(|event| span.contains(event.timestamp));
            let counts = (events.len() as u64, passed_over);
            self.store(events).await?;
            let noted = next.clone();
            self.file
                .update(|job| note_page(job, conversation, counts, noted))
                .await?;
            metrics::counter!("nexus_backfill_events_total", "source" => self.history.channel()).increment(counts.0);
            match next {
                Some(next) => position = next,
                None => return Ok(()),
            }
        }
    }

    /// Waits until JetStream has `events`, and in place of texts that are parts of other events those. Paired senders are let in; no
    /// sender gets a code for an earlier message.
    async fn store(&self, events: Vec<Event>) -> Result<(), SourceFenced> {
        let sink = &self.runner.sink;
        let store = AccountEvents {
            context: sink,
            channel: self.history.channel(),
            account: self.history.account(),
        };
        // The caller drops this once it may not go on.
        let is_held = || true;
        let merges = MergeNotes::new(&sink.bus);
        for batch in events.chunks(BATCH) {
            let mut batch = batch.to_vec();
            let wholes = loop {
                match Box::pin(merges.find_wholes(&single_texts(&batch))).await {
                    Ok(wholes) => break wholes,
                    Err(error) => {
                        tracing::warn!(error = describe_error(&error), "failed to read merged events; retrying");
                        pause(TRY_AGAIN_AFTER).await;
                    }
                }
            };
            replace_parts(&mut batch, &wholes);
            for event in &mut batch {
                apply_age_gate(event, sink.age_gate_ms);
            }
            let direct = self.history.direct_policy();
            while let Err(error) = strangers::settle_strangers(&sink.pairings, direct, &mut batch).await {
                tracing::warn!(error = describe_error(&error), "failed to read a pairing; retrying");
                pause(TRY_AGAIN_AFTER).await;
            }
            store.fetch_files(&mut batch, is_held).await?;
            store.store(batch, &EventTraces::default(), is_held).await?;
        }
        Ok(())
    }
}
