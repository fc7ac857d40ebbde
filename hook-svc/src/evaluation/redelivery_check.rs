//! State that former owners of a partition may have left for a redelivered event.
//!
//! After a take-over up to a thousand events of a partition may be done, and most of a long backlog are not. A former
//! owner's records from before the take-over are at or below the end that the leader reports for the partition's
//! records. So the read model, once it has reached that end, shows for most events that they have no record; for the
//! others, and if it cannot tell, the leader is asked one by one. Records that a stopped owner still stores afterwards
//! have the same ids as those stored here.

use std::time::Duration;

use shared::bus::{Bus, StoredMessage};
use shared::model::event::EventId;
use shared::model::invocation::EventInvocations;
use shared::model::time::{UnixMillis, millis_of};
use shared::wire::headers::THROUGH;
use shared::wire::subject;
use shared::wire::topology::INVOCATIONS_KEPT;
use shared::wire::topology::buckets::HOOK_RESULTS;
use shared::wire::topology::streams::INVOCATIONS;

use crate::read_model::access::ModelAccess;

/// Time limit for the read model to reach the end of the records; until it has, the leader is asked about each event.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time in milliseconds by which an event counts as too old before its record does: one day.
const MARGIN_MS: i64 = 24 * 3_600_000;

/// Returns whether the record of an event stored at `stored_at` may have expired at `now`, both by the server's clock.
pub(crate) fn outlives_records(stored_at: UnixMillis, now: UnixMillis) -> bool {
    now.since(stored_at) > millis_of(INVOCATIONS_KEPT) - MARGIN_MS
}

/// Returns the highest event sequence that a record up to and including `last` may belong to.
fn highest_named(last: &StoredMessage) -> Option<u64> {
    let own = last.decode::<EventInvocations>().ok()?.event_seq;
    let through = last.headers.get(THROUGH).and_then(|through| through.parse().ok());
    Some(own.max(through.unwrap_or(0)))
}

/// State of the partition's records when it was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RedeliveryCheck {
    /// Sequence of the partition's last record, 0 if there are none; `None` if unknown.
    records: Option<u64>,
    /// Highest event sequence that one of these records may belong to; `None` if unknown.
    named: Option<u64>,
    /// Whether answers of any hook may be stored.
    has_answers: bool,
}

impl RedeliveryCheck {
    /// Reads the state that former owners of `partition`, which is held here now, have left. Unknown items are assumed
    /// to exist.
    pub(crate) async fn of_former_owners(bus: &Bus, model: &ModelAccess, partition: u16) -> Self {
        let own = subject::invocations_of(partition);
        let (records, named) = match bus.last_on_subject(INVOCATIONS, &own).await {
            Ok(None) => (Some(0), Some(0)),
            Ok(Some(last)) => (Some(last.sequence), highest_named(&last)),
            Err(error) => {
                tracing::debug!(partition, %error, "end of the records is unknown");
                (None, None)
            }
        };

        let answers = format!("$KV.{HOOK_RESULTS}.>");
        let answers = bus.last_on_subject(&format!("KV_{HOOK_RESULTS}"), &answers).await;

        // The read model is given a moment: with it most events need no question to the server.
        if let Some(records) = records {
            let come = tokio::time::timeout(PATIENCE, model.wait_records(records)).await;
            if !matches!(come, Ok(true)) {
                tracing::debug!(partition, records, "read model has not reached the records yet");
            }
        }

        Self {
            records,
            named,
            has_answers: !matches!(answers, Ok(None)),
        }
    }

    /// Returns the highest event sequence that a record of the partition may belong to, as of the take-over; `None` if
    /// unknown. Records are stored out of order, so the last one names how far its owner was.
    pub(crate) const fn highest_sequence(self) -> Option<u64> {
        self.named
    }

    /// Returns whether answers of hooks may be stored for an event.
    pub(crate) const fn has_answers(self) -> bool {
        self.has_answers
    }

    /// Returns whether the event `id` certainly had no record at the take-over.
    pub(crate) async fn has_no_record(self, id: &EventId, model: &ModelAccess) -> bool {
        match self.records {
            None => false,
            Some(0) => true,
            // If this replica has no copy, or it cannot be read, the leader is asked.
            Some(records) => model.has_no_record(id, records).await,
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
