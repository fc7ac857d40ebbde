//! Intents whose value in KV is older than what `AUDIT` has of them: KV `intents` was put back to an older state.
//!
//! A backup copies the buckets before `AUDIT`, so one that is made under load holds such intents. No step follows on such
//! a value: its next record would have a number that another one has. The records that it lacks are folded into it, and
//! the result is written in its place: an end stays an end, a firing is under way and never begun again, and a time that
//! was planned is waited for.

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
use super::{conditions, looking, machine, timers};

/// How intents that are behind `AUDIT` are named where that is told of.
pub(super) const BEHIND: &str = "intents";
/// How long after now a timer rings at the earliest, milliseconds: the value that it counts on is stored after it.
const SOON_MS: i64 = 2_000;

/// What `AUDIT` has of an intent behind its value.
struct Lacking {
    /// Ascending; never empty.
    records: Vec<IntentRecord>,
    /// Sequence of the record before the last.
    upon: u64,
}

impl IntentStore {
    /// How many values were behind `AUDIT` since the process began.
    #[must_use]
    pub fn caught_up(&self) -> u64 {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// Waits until a value was behind `AUDIT`; at once if one was since the last call.
    pub async fn put_back(&self) {
        self.put_back.notified().await;
    }

    /// Brings what KV has in the place of `value` up to `AUDIT`, whose newest record of it is `last`. Nothing happens if
    /// `value` is not what stands there any more.
    ///
    /// # Errors
    /// [`HandleIntentError`] if it cannot be read or written.
    pub(super) async fn catch_up(&self, value: &Intent, last: StoredMessage) -> Result<(), HandleIntentError> {
        let intent = &value.intent;

        // After `AUDIT`, and from the leader: whoever wrote a record there had written its value before.
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

    /// The records behind `value`, read from `last` backwards: each names the one that it was written upon.
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

    /// Stores what wakes `next`, before it is stored itself.
    async fn arm(&self, next: &Intent) -> Result<(), HandleIntentError> {
        let soon = self.clock.now().plus(SOON_MS);
        let ring = async |purpose: TimerPurpose, nominal: UnixMillis, at: UnixMillis| {
            timers::set_timer(&self.bus, &timers::new_timer(next, purpose, nominal), at.max(soon)).await
        };

        match (next.status, &next.running) {
            (IntentStatus::Running, Some(running)) => {
                let look = running.at.plus(looking::FIRST_LOOK_MS);
                ring(TimerPurpose::Outcome, running.nominal, look).await?;
            }
            (IntentStatus::Pending, _) => {
                if let Some(rings) = next.due.or(next.deadline) {
                    ring(TimerPurpose::Fire, rings, rings).await?;
                }

                // Whether it is quiet is looked at now; each look says when the next one is.
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
            // An approver's decision, or the reconciler, brings it further; one that is over is cleared away.
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
