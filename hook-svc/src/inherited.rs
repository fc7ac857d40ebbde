//! What former owners of a partition may have left of an event that comes again.
//!
//! After a take-over up to a thousand events of a partition may be done, and most of a long backlog are not. What a former
//! owner stored before the partition was taken lies below where the leader says that its records end. So the read model,
//! once it has come there, tells of most events that they have no record; of the others, and where it cannot tell, the
//! leader is asked one by one. What a stopped owner still stores afterwards has the same ids as what is stored here.

use std::time::Duration;

use shared::bus::Bus;
use shared::projection::{Projection, Source};
use shared::wire::subject;
use shared::wire::topology::buckets::HOOK_RESULTS;
use shared::wire::topology::streams::INVOCATIONS;

use crate::task::Task;

/// How long the read model may take to come to the end of the records; until it has, the leader is asked about each event.
const PATIENCE: Duration = Duration::from_secs(1);

/// As of when the partition was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited {
    /// Where the partition's records end, 0 = there are none; none = nobody could tell.
    records: Option<u64>,
    /// Whether answers of any hook may be kept.
    has_answers: bool,
}

impl Inherited {
    /// What is left by whoever held `partition`, which is held here now. What cannot be told may be there.
    pub(crate) async fn of_former_owners(bus: &Bus, projection: &Projection, partition: u16) -> Self {
        let own = subject::invocations_of(partition);
        let records = match bus.last_on_subject(INVOCATIONS, &own).await {
            Ok(last) => Some(last.map_or(0, |last| last.sequence)),
            Err(error) => {
                tracing::debug!(partition, %error, "nobody can tell where the records end");
                None
            }
        };
        let answers = format!("$KV.{HOOK_RESULTS}.>");
        let answers = bus.last_on_subject(&format!("KV_{HOOK_RESULTS}"), &answers).await;
        if let Some(records) = records {
            let come = tokio::time::timeout(PATIENCE, projection.reached(Source::Invocations, records)).await;
            if !matches!(come, Ok(Ok(()))) {
                tracing::debug!(partition, records, "the read model has not come to the records yet");
            }
        }
        Self {
            records,
            has_answers: !matches!(answers, Ok(None)),
        }
    }

    /// Whether answers of hooks may be kept of an event.
    pub(crate) const fn has_answers(self) -> bool {
        self.has_answers
    }

    /// Whether `task`'s event certainly had no record then.
    pub(crate) async fn has_no_record(self, task: &Task, projection: &Projection) -> bool {
        match self.records {
            None => false,
            Some(0) => true,
            Some(records) => {
                let told = projection.has_no_record(&task.event.id, records).await;
                // Where the file cannot be read, the leader tells.
                told.unwrap_or(false)
            }
        }
    }
}
