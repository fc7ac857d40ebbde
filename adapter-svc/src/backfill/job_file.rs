//! A running job in KV `backfills`, as the replica that reads it has it: each change is written behind the last one that it
//! knows.

use shared::bus::{CasError, Kv, ReadStreamError};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::wire::operator::backfill::{BackfillJob, backfill_key};
use tokio::sync::Mutex;

use crate::source::port::event_store::{SourceFenced, TRY_AGAIN_AFTER};

/// A running job.
#[derive(Debug)]
pub struct JobFile {
    jobs: Kv<BackfillJob>,
    key: String,
    clock: SharedClock,
    /// The job and its revision, as this replica read or wrote it last.
    known: Mutex<(BackfillJob, u64)>,
}

impl JobFile {
    /// Opens the job with the key `key`; `None` if none runs.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be read.
    pub async fn open(jobs: &Kv<BackfillJob>, key: &str, clock: SharedClock) -> Result<Option<Self>, ReadStreamError> {
        let (found, revision) = jobs.find(key).await?;
        // A job under another account's key would be read for the wrong one.
        let is_own = |job: &BackfillJob| job.is_running() && backfill_key(&job.channel, &job.account) == key;
        Ok(found.filter(is_own).map(|job| Self {
            jobs: jobs.clone(),
            key: key.to_owned(),
            clock,
            known: Mutex::new((job, revision)),
        }))
    }

    /// Returns the job.
    pub async fn job(&self) -> BackfillJob {
        self.known.lock().await.0.clone()
    }

    /// Changes the job by `change`, and writes it as often as it takes. Returns what `change` did.
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if another replica or an operator has changed it meanwhile.
    pub async fn update<T>(&self, change: impl FnOnce(&mut BackfillJob) -> T) -> Result<T, SourceFenced> {
        let mut known = self.known.lock().await;
        let (job, revision) = &mut *known;
        let returned = change(job);
        job.changed_at = self.clock.now();
        loop {
            match self.jobs.update(&self.key, job, *revision).await {
                Ok(written) => {
                    *revision = written;
                    return Ok(returned);
                }
                Err(CasError::Conflict { .. }) => return Err(SourceFenced),
                Err(error @ (CasError::Publish(_) | CasError::Read(_))) => {
                    let (key, error) = (&self.key, describe_error(&error));
                    tracing::warn!(key, error, "failed to write the position of a backfill; retrying");
                    pause(TRY_AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Returns whether the bucket still has the job as this replica knows it. While it cannot be asked it has.
    pub async fn is_current(&self) -> bool {
        let known = self.known.lock().await;
        match self.jobs.get(&self.key).await {
            Ok(Some(entry)) => entry.revision == known.1,
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(
                    key = self.key,
                    error = describe_error(&error),
                    "failed to look for a backfill"
                );
                true
            }
        }
    }
}
