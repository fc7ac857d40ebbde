//! What former owners of a partition may have left of an event that comes again.
//!
//! After a take-over up to a thousand events of a partition may be done, and most of a long backlog are not. Whatever a
//! former owner stored was stored before the partition was taken, so the ends of the streams at that time and the read
//! model, once it has come there, tell of most events that nothing is left of them. Where they do not, the leader is asked
//! about the event itself.

use std::time::Duration;

use shared::bus::{Bus, ReadStreamError};
use shared::projection::{Projection, Source};
use shared::wire::topology::buckets::HOOK_RESULTS;
use shared::wire::topology::streams::INVOCATIONS;

use crate::task::Task;

/// How long the read model may take to come to the end of the records; one that takes longer is asked in vain.
const PATIENCE: Duration = Duration::from_secs(1);

/// As of when the partition was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited {
    /// Where the records end.
    records: u64,
    /// Whether answers of any hook are kept.
    has_answers: bool,
}

impl Inherited {
    /// What is left of whoever held a partition that is held here now.
    pub(crate) async fn of_former_owners(bus: &Bus, projection: &Projection) -> Result<Self, ReadStreamError> {
        let records = bus.stream_state(INVOCATIONS).await?.last;
        let answers = bus.stream_state(&format!("KV_{HOOK_RESULTS}")).await?.messages;
        let come = tokio::time::timeout(PATIENCE, projection.reached(Source::Invocations, records)).await;
        if !matches!(come, Ok(Ok(()))) {
            tracing::debug!(
                records,
                "the read model is behind: the leader is asked about each event"
            );
        }
        Ok(Self {
            records,
            has_answers: answers > 0,
        })
    }

    /// Whether answers of hooks may be kept of an event.
    pub(crate) const fn has_answers(self) -> bool {
        self.has_answers
    }

    /// Whether `task`'s event certainly has no record.
    pub(crate) fn has_no_record(self, task: &Task, projection: &Projection) -> bool {
        // An empty stream has no record; where the file cannot be read, the leader tells.
        self.records == 0 || projection.has_no_record(&task.event.id, self.records).unwrap_or(false)
    }
}
