//! Repairs intents whose value in KV is older than their records in `AUDIT`, because KV `intents` was restored to an
//! older state.
//!
//! A backup copies the buckets before `AUDIT`, so a backup that is made under load contains such intents. No step may
//! follow on such a value, because its next record would have a number that is taken. The missing records are folded
//! into the value, and the result replaces it: an end stays an end, a firing under way is not started again, and a
//! planned time is waited for.

use std::sync::atomic::Ordering;

use shared::bus::StoredMessage;
use shared::bus::position::told_degraded;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{ApprovalRequirement, Intent, IntentRecord, IntentStatus};
use shared::model::time::UnixMillis;
use shared::wire::topology::streams::{AUDIT, EVENTS};

use super::approvals::ASK_AHEAD_MS;
use super::error::HandleIntentError;
use super::refold::{Refolded, refold};
use super::store::{IntentStore, key, record_number};
use super::{conditions, machine, timers};

/// Name of the fault in the service's status.
pub(super) const BEHIND: &str = "intents";
/// Least time until a timer fires, milliseconds: the value that it depends on is stored after it.
const SOON_MS: i64 = 2_000;

/// Records of an intent in `AUDIT` that its value does not contain.
struct Lacking {
    /// Records in ascending order; never empty.
    records: Vec<IntentRecord>,
    /// Sequence of the record before the last; 0 = there is none.
    upon: u64,
}

impl IntentStore {
    /// Returns the number of values that were behind `AUDIT` since the process started.
    #[must_use]
    pub fn caught_up(&self) -> u64 {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// Waits until a value was behind `AUDIT`. Returns at once if one was since the last call.
    pub async fn put_back(&self) {
        self.put_back.notified().await;
    }

    /// Brings `value` in KV up to `AUDIT`, whose newest record of the intent is `last`. Does nothing if KV has another
    /// value by now.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket or the stream cannot be read or written.
    pub(super) async fn catch_up(&self, value: &Intent, last: StoredMessage) -> Result<(), HandleIntentError> {
        let intent = &value.intent;

        // Reading KV after `AUDIT`, from the leader, is conclusive: the author of a record wrote its value before the
        // record.
        let Some(entry) = self.get(Some(&intent.agent), intent.id).await? else {
            return Ok(());
        };
        if entry.value != *value {
            return Ok(());
        }

        let lacking = self.lacking(value, last).await?;
        let Refolded {
            value: mut next,
            counts_from,
        } = refold(value, &lacking.records, lacking.upon)
            .map_err(|error| HandleIntentError::Unreadable(error.to_string()))?;
        if let Some(at) = counts_from {
            let events = self.bus.stored_by(EVENTS, at.0.saturating_mul(1_000_000)).await?;
            machine::count_from(&mut next, &events);
        }

        next.writer = self.new_writer();
        self.arm(&next).await?;
        self.values
            .update(&key(&intent.agent, intent.id), &next, entry.revision)
            .await
            .map_err(|error| HandleIntentError::from_cas(intent.id, error))?;

        self.caught_up.fetch_add(1, Ordering::Relaxed);
        self.put_back.notify_one();
        told_degraded(
            BEHIND,
            "KV intents was restored to an older state; AUDIT has the newer steps".to_owned(),
        );
        metrics::counter!("nexus_scheduler_intents_behind_total").increment(1);
        tracing::warn!(
            intent = %intent.id, session = %next.target(), from = %value.status, from_n = value.n, to = %next.status, n = next.n,
            "KV intents was restored to an older state; intent brought up to its AUDIT records"
        );

        self.spawn_audit(&next).await;
        Ok(())
    }

    /// Returns the records that `value` lacks, read backwards from `last`: each record names its predecessor.
    async fn lacking(&self, value: &Intent, last: StoredMessage) -> Result<Lacking, HandleIntentError> {
        let upon = last.previous_sequence().unwrap_or_default();
        let mut records = Vec::new();

        let mut next = Some(last);
        while let Some(stored) = next {
            if record_number(&stored) <= value.n {
                break;
            }
            records.extend(stored.decode::<IntentRecord>().ok());
            next = self.bus.previous_message(AUDIT, &stored).await?;
        }

        records.reverse();
        Ok(Lacking { records, upon })
    }

    /// Stores the wake-up of `next`, before the value itself is stored.
    async fn arm(&self, next: &Intent) -> Result<(), HandleIntentError> {
        let soon = self.clock.now().plus(SOON_MS);
        let ring = async |purpose: TimerPurpose, nominal: UnixMillis, at: UnixMillis| {
            timers::set_timer(&self.bus, &timers::new_timer(next, purpose, nominal), at.max(soon)).await
        };

        match (next.status, &next.running) {
            (IntentStatus::Running, Some(running)) => {
                let look = running.at.plus(timers::FIRST_LOOK_MS);
                ring(TimerPurpose::Outcome, running.nominal, look).await?;
            }
            (IntentStatus::Pending, _) => {
                if let Some(rings) = next.due.or(next.deadline) {
                    ring(TimerPurpose::Fire, rings, rings).await?;
                }

                // The conversation is checked for quiet now; each check sets the time of the next one.
                if next.intent.schedule.quiet_seconds().is_some() {
                    ring(TimerPurpose::Fire, soon, soon).await?;
                }

                if let (Some(due), ApprovalRequirement::BeforeFire) = (next.due, next.intent.approval) {
                    ring(TimerPurpose::Approval, due, due.plus(-ASK_AHEAD_MS)).await?;
                }

                if let Some(mark) = conditions::mark_of(next) {
                    conditions::store_mark(&self.bus, &mark).await?;
                }
            }
            // An approver's decision or the reconciler continues these; ended intents are cleaned up.
            (
                IntentStatus::Running
                | IntentStatus::Proposed
                | IntentStatus::Rescheduled
                | IntentStatus::Completed
                | IntentStatus::Failed
                | IntentStatus::Canceled
                | IntentStatus::Rejected,
                _,
            ) => {}
        }

        Ok(())
    }
}
