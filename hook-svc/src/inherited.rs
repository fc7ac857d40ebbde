//! What former owners of a partition may have left of an event that comes again.
//!
//! After a take-over up to a thousand events of a partition may be done, and most of a long backlog are not. What a former
//! owner stored before the partition was taken lies below where the leader says that its records end. So the read model,
//! once it has come there, tells of most events that they have no record; of the others, and where it cannot tell, the
//! leader is asked one by one. What a stopped owner still stores afterwards has the same ids as what is stored here.

use std::time::Duration;

use shared::bus::{Bus, Stored};
use shared::model::invocation::EventInvocations;
use shared::model::time::UnixMillis;
use shared::projection::{Projection, Source};
use shared::wire::headers::THROUGH;
use shared::wire::subject;
use shared::wire::topology::INVOCATIONS_KEPT;
use shared::wire::topology::buckets::HOOK_RESULTS;
use shared::wire::topology::streams::INVOCATIONS;

use crate::task::Task;

/// How long the read model may take to come to the end of the records; until it has, the leader is asked about each event.
const PATIENCE: Duration = Duration::from_secs(1);

/// How much sooner than its record an event counts as too old, milliseconds: one day.
const MARGIN_MS: i64 = 24 * 3_600_000;

/// Whether the record of an event that was stored at `stored_at` may be gone by age at `now`, both by the server's clock.
pub(crate) fn outlives_records(stored_at: UnixMillis, now: UnixMillis) -> bool {
    let kept = i64::try_from(INVOCATIONS_KEPT.as_millis()).unwrap_or(i64::MAX);
    now.since(stored_at) > kept - MARGIN_MS
}

/// The highest event sequence that a record up to and with `last` may be of.
fn named(last: &Stored) -> Option<u64> {
    let own = last.decode::<EventInvocations>().ok()?.event_seq;
    let through = last.headers.get(THROUGH).and_then(|through| through.parse().ok());
    Some(own.max(through.unwrap_or(0)))
}

/// As of when the partition was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited {
    /// Where the partition's records end, 0 = there are none; none = nobody could tell.
    records: Option<u64>,
    /// The highest event sequence that one of these records may be of; none = nobody could tell.
    named: Option<u64>,
    /// Whether answers of any hook may be kept.
    has_answers: bool,
}

impl Inherited {
    /// What is left by whoever held `partition`, which is held here now. What cannot be told may be there.
    pub(crate) async fn of_former_owners(bus: &Bus, projection: &Projection, partition: u16) -> Self {
        let own = subject::invocations_of(partition);
        let (records, named) = match bus.last_on_subject(INVOCATIONS, &own).await {
            Ok(None) => (Some(0), Some(0)),
            Ok(Some(last)) => (Some(last.sequence), named(&last)),
            Err(error) => {
                tracing::debug!(partition, %error, "end of the records is unknown");
                (None, None)
            }
        };

        let answers = format!("$KV.{HOOK_RESULTS}.>");
        let answers = bus.last_on_subject(&format!("KV_{HOOK_RESULTS}"), &answers).await;

        if let Some(records) = records {
            let come = tokio::time::timeout(PATIENCE, projection.reached(Source::Invocations, records)).await;
            if !matches!(come, Ok(Ok(()))) {
                tracing::debug!(partition, records, "read model has not reached the records yet");
            }
        }

        Self {
            records,
            named,
            has_answers: !matches!(answers, Ok(None)),
        }
    }

    /// The highest event sequence that a record of the partition may be of, as of when it was taken; none = nobody could
    /// tell. Records come out of order, so the last one says how far its owner was.
    pub(crate) const fn named(self) -> Option<u64> {
        self.named
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_too_old_a_day_before_its_record_may_be_gone() {
        let stored = UnixMillis(1_764_000_000_000);
        let after_days = |days: i64| stored.plus(days * 24 * 3_600_000);
        assert!(!outlives_records(stored, stored));
        assert!(!outlives_records(stored, after_days(29)));
        assert!(outlives_records(stored, after_days(29).plus(1)));
        assert!(outlives_records(stored, after_days(300)));
        assert!(!outlives_records(stored, after_days(-300)), "a clock that was set back");
    }
}
