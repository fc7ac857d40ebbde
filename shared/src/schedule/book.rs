//! The owners' side of KV `schedules`: saying what shall fire.
//!
//! An owner says all of its schedules at once, again at each start and change; what it no longer says is removed. What
//! the scheduler keeps in a record (what is next, what is paused) stays where the schedule itself is unchanged.

use std::collections::BTreeSet;

use crate::bus::{Bus, CasError, Entry, Kv, ReadStreamError};
use crate::model::schedule::{ScheduleRecord, ScheduleSpec};
use crate::model::time::UnixMillis;
use crate::wire::subject;
use crate::wire::topology::buckets;

/// How often a record is tried to be written while others write it.
const TRIES: u32 = 16;

/// A schedule could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteScheduleError {
    /// The records cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server refuses it.
    #[error(transparent)]
    Write(#[from] CasError),
    /// Others write it all the time.
    #[error("schedule `{id}` is written by others all the time")]
    Contended {
        /// The schedule.
        id: String,
    },
}

/// KV `schedules`.
#[derive(Debug, Clone)]
pub struct ScheduleBook {
    kv: Kv<ScheduleRecord>,
}

impl ScheduleBook {
    /// That of `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            kv: bus.kv(buckets::SCHEDULES),
        }
    }

    /// The bucket.
    #[must_use]
    pub const fn kv(&self) -> &Kv<ScheduleRecord> {
        &self.kv
    }

    /// The key of the schedule `id`.
    #[must_use]
    pub fn key(id: &str) -> String {
        subject::token(id)
    }

    /// The record of `id`.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the bucket cannot be asked.
    pub async fn get(&self, id: &str) -> Result<Option<Entry<ScheduleRecord>>, ReadStreamError> {
        self.kv.get(&Self::key(id)).await
    }

    /// Says that `specs` are all schedules whose ids begin with `prefix` (`hook:{id}:`, `config:`): others are removed,
    /// changed ones begin anew, unchanged ones go on. Any number of replicas may say the same at the same time.
    ///
    /// # Errors
    /// [`WriteScheduleError`]; what was written before stands, and saying it again completes it.
    pub async fn replace(
        &self,
        prefix: &str,
        specs: &[ScheduleSpec],
        now: UnixMillis,
    ) -> Result<(), WriteScheduleError> {
        let said: BTreeSet<&str> = specs.iter().map(|spec| spec.id.as_str()).collect();
        for (key, entry) in self.kv.entries().await? {
            let id = entry.value.spec.id.as_str();
            if id.starts_with(prefix) && !said.contains(id) {
                tracing::info!(schedule = id, "schedule is removed");

                match self.kv.delete(&key, Some(entry.revision)).await {
                    Ok(()) => {}
                    // It has just fired, or another replica removes it as well.
                    Err(CasError::Conflict { .. }) => self.kv.delete(&key, None).await?,
                    Err(error) => return Err(error.into()),
                }
            }
        }

        for spec in specs {
            self.say(spec, now).await?;
        }

        Ok(())
    }

    /// Says that `spec` is a schedule; unchanged, it goes on.
    ///
    /// # Errors
    /// [`WriteScheduleError`] where it cannot be written.
    pub async fn say(&self, spec: &ScheduleSpec, now: UnixMillis) -> Result<(), WriteScheduleError> {
        let key = Self::key(&spec.id);
        for _ in 0..TRIES {
            let standing = self.kv.get(&key).await?;
            let written = match &standing {
                None => self.kv.create(&key, &ScheduleRecord::new(spec.clone(), now)).await,
                Some(entry) if entry.value.spec == *spec => return Ok(()),
                Some(entry) => {
                    self.kv
                        .update(&key, &changed(&entry.value, spec, now), entry.revision)
                        .await
                }
            };

            match written {
                Ok(_) => return Ok(()),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }

        Err(WriteScheduleError::Contended { id: spec.id.clone() })
    }

    /// Removes the schedule `id`.
    ///
    /// # Errors
    /// [`CasError`] where the server refuses it.
    pub async fn remove(&self, id: &str) -> Result<(), CasError> {
        self.kv.delete(&Self::key(id), None).await
    }
}

/// The record after its owner changed it: other times begin anew, a pause stays.
fn changed(record: &ScheduleRecord, spec: &ScheduleSpec, now: UnixMillis) -> ScheduleRecord {
    let same_times = record.spec.schedule == spec.schedule && record.spec.zone == spec.zone;
    ScheduleRecord {
        decided_until: if same_times { record.decided_until } else { now },
        next: None,
        buffered: record.buffered.filter(|_| same_times),
        spec: spec.clone(),
        updated_at: now,
        ..record.clone()
    }
}
