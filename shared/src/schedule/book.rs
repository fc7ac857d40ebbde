//! The owners' access to KV `schedules`: declaring the schedules that must exist.
//!
//! An owner declares all of its schedules at once, at each start and change; a schedule that it no longer declares is
//! removed. The scheduler's data in a record (its next firing, a pause) is kept if the schedule itself is unchanged.

use std::collections::BTreeSet;

use crate::bus::{Bus, CasError, Kv, KvEntry, ReadStreamError};
use crate::model::schedule::{ScheduleRecord, ScheduleSpec};
use crate::model::time::UnixMillis;
use crate::wire::subject;
use crate::wire::topology::buckets;

/// Maximum number of attempts to write a record while others write it.
const TRIES: u32 = 16;

/// The reason why a schedule could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteScheduleError {
    /// The records cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server refuses the write.
    #[error(transparent)]
    Write(#[from] CasError),
    /// Other writers changed the record at every attempt.
    #[error("schedule `{id}`: too many concurrent updates")]
    Contended {
        /// Id of the schedule.
        id: String,
    },
}

/// Access to KV `schedules`.
#[derive(Debug, Clone)]
pub struct ScheduleBook {
    kv: Kv<ScheduleRecord>,
}

impl ScheduleBook {
    /// Returns the schedules of `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            kv: bus.kv(buckets::SCHEDULES),
        }
    }

    /// Returns the bucket of the records.
    #[must_use]
    pub const fn kv(&self) -> &Kv<ScheduleRecord> {
        &self.kv
    }

    /// Returns the key of the schedule `id`.
    #[must_use]
    pub fn key(id: &str) -> String {
        subject::token(id)
    }

    /// Returns the record of the schedule `id`.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be read.
    pub async fn get(&self, id: &str) -> Result<Option<KvEntry<ScheduleRecord>>, ReadStreamError> {
        self.kv.get(&Self::key(id)).await
    }

    /// Declares `specs` as all schedules whose ids start with `prefix` (`hook:{id}:`, `config:`): others are removed,
    /// changed ones are restarted, and unchanged ones continue. Any number of replicas may declare the same at the
    /// same time.
    ///
    /// # Errors
    /// Returns [`WriteScheduleError`]. Earlier writes remain, and calling this again completes the change.
    pub async fn replace_schedules(
        &self,
        prefix: &str,
        specs: &[ScheduleSpec],
        now: UnixMillis,
    ) -> Result<(), WriteScheduleError> {
        let said: BTreeSet<&str> = specs.iter().map(|spec| spec.id.as_str()).collect();
        for (key, entry) in self.kv.entries().await? {
            let id = entry.value.spec.id.as_str();
            if id.starts_with(prefix) && !said.contains(id) {
                tracing::info!(schedule = id, "schedule removed");

                match self.kv.delete(&key, Some(entry.revision)).await {
                    Ok(()) => {}
                    // The schedule has just fired, or another replica removes it as well.
                    Err(CasError::Conflict { .. }) => self.kv.delete(&key, None).await?,
                    Err(error) => return Err(error.into()),
                }
            }
        }

        for spec in specs {
            self.write_spec(spec, now).await?;
        }

        Ok(())
    }

    /// Declares `spec` as a schedule. An unchanged schedule continues.
    ///
    /// # Errors
    /// Returns [`WriteScheduleError`] if the record cannot be read or written.
    pub async fn write_spec(&self, spec: &ScheduleSpec, now: UnixMillis) -> Result<(), WriteScheduleError> {
        let key = Self::key(&spec.id);
        for _ in 0..TRIES {
            let standing = self.kv.get(&key).await?;
            let written = match &standing {
                None => self.kv.create(&key, &ScheduleRecord::new(spec.clone(), now)).await,
                // Unchanged: the scheduler's data in the record is kept.
                Some(entry) if entry.value.spec == *spec => return Ok(()),
                Some(entry) => {
                    self.kv
                        .update(&key, &changed_record(&entry.value, spec, now), entry.revision)
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
    /// Returns [`CasError`] if the server refuses the deletion.
    pub async fn remove(&self, id: &str) -> Result<(), CasError> {
        self.kv.delete(&Self::key(id), None).await
    }
}

/// Returns the record after its owner changed it: new times restart the schedule, and a pause remains.
fn changed_record(record: &ScheduleRecord, spec: &ScheduleSpec, now: UnixMillis) -> ScheduleRecord {
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
