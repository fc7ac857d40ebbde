//! A task that one replica at a time does: the one that holds the task's lease in KV `leases`.
//!
//! The lease says which replica shall, not which may: a holder that is slow may be at it together with the next one,
//! and the task must bear that.

use std::borrow::Cow;
use std::time::Duration;

use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::buckets;

use super::connect::Bus;
use super::error::CasError;
use super::kv::Kv;

/// How long the lease lasts without a refresh.
const TTL: Duration = Duration::from_secs(6);

/// The lease of one task, as one replica sees it.
#[derive(Debug)]
pub struct TaskLease {
    leases: Kv<LeaseRecord>,
    task: Cow<'static, str>,
    holder: String,
    /// The lease's revision while this replica holds it.
    revision: Option<u64>,
}

impl TaskLease {
    /// That of `task`, for replica `holder`, which does not hold it yet.
    #[must_use]
    pub fn new(bus: &Bus, task: impl Into<Cow<'static, str>>, holder: String) -> Self {
        Self {
            leases: bus.kv(buckets::LEASES),
            task: task.into(),
            holder,
            revision: None,
        }
    }

    /// Refreshes the lease, or takes it if no replica has it. Returns whether this replica holds it.
    ///
    /// # Errors
    /// [`CasError`] if the bucket cannot be asked or takes no value.
    pub async fn hold(&mut self) -> Result<bool, CasError> {
        let record = LeaseRecord::held_by(self.holder.clone());

        let taken = match self.revision.take() {
            Some(revision) => self.leases.update_ttl(&self.task, &record, revision, TTL).await,
            None => self.take(&record).await,
        };
        match taken {
            Ok(revision) => self.revision = Some(revision),
            Err(CasError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }

        Ok(self.revision.is_some())
    }

    async fn take(&self, record: &LeaseRecord) -> Result<u64, CasError> {
        let taken = self.leases.create_ttl(&self.task, record, TTL).await;
        let Err(CasError::Conflict { bucket, key }) = taken else {
            return taken;
        };

        match self.leases.find(&self.task).await? {
            (Some(_), _) => Err(CasError::Conflict { bucket, key }),
            // One that cannot be read has no holder.
            (None, revision) => self.leases.update_ttl(&self.task, record, revision, TTL).await,
        }
    }

    /// Gives the lease back, if this replica holds it; if that fails, it lapses.
    pub async fn give_back(&mut self) {
        let Some(revision) = self.revision.take() else { return };
        if let Err(error) = self.leases.delete(&self.task, Some(revision)).await {
            tracing::debug!(task = %self.task, %error, "lease of a task was not given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world;

    #[tokio::test(flavor = "multi_thread")]
    async fn one_replica_at_a_time_holds_a_task() {
        let (_server, bus) = world().await;
        let mut one = TaskLease::new(&bus, "task", "one".to_owned());
        let mut other = TaskLease::new(&bus, "task", "other".to_owned());

        assert!(one.hold().await.expect("asked"));
        assert!(!other.hold().await.expect("asked"));
        assert!(one.hold().await.expect("asked"), "it goes on holding it");

        one.give_back().await;
        assert!(other.hold().await.expect("asked"));
        assert!(!one.hold().await.expect("asked"));

        // A holder that is gone is followed once its lease is over.
        drop(other);
        let lapsed = tokio::time::timeout(10 * TTL, async {
            while !one.hold().await.expect("asked") {
                crate::clock::pause(Duration::from_millis(50)).await;
            }
        });
        lapsed.await.expect("the lease lapses");
    }
}
