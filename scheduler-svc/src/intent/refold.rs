//! Folds records of `AUDIT` into the older value of an intent. *Pure.*
//!
//! The records describe each step, so the value that was written with the last of them can be made again, with two
//! exceptions. The position from which events count follows from the time of the step ([`Refolded::counts_from`]). A
//! record does not say whether a turn canceled its own intent, so the turn is spared.

use shared::model::event::ParseEventIdError;
use shared::model::intent::{
    Intent, IntentCode, IntentFiring, IntentLineage, IntentRecord, IntentStatus, MAX_LINEAGE, WithdrawnIntent,
};
use shared::model::time::UnixMillis;

use super::executor::occurrence_after;
use super::machine::{self, StepCause, TakeStepError};
use super::{firing, plan};

/// The records cannot be folded into the value.
#[derive(Debug, thiserror::Error)]
pub enum RefoldError {
    /// The id of a firing's event cannot be formed.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
    /// The lifecycle does not have the step.
    #[error(transparent)]
    Step(#[from] TakeStepError),
}

/// A value that is as new as its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refolded {
    /// The value. It contains the last folded record and, if that record was the first of two of one step, the second
    /// one.
    pub value: Intent,
    /// If the records set a condition: time after which events must be stored to count for it.
    pub counts_from: Option<UnixMillis>,
}

/// Returns the value after `value` and `records`, the records that it lacks in ascending order. `upon` is the sequence
/// in `AUDIT` of the record before the last of them; 0 = there is none.
///
/// # Errors
/// Returns [`RefoldError`] if the records are not those of an intent.
pub fn refold(value: &Intent, records: &[IntentRecord], upon: u64) -> Result<Refolded, RefoldError> {
    let mut next = machine::next_value(value);
    let mut counts_from = None;
    for record in records {
        take_in(&mut next, record)?;
        // A condition counts events from the step that set it.
        if matches!(record.code, IntentCode::Admitted | IntentCode::Rearmed) {
            set_deadline(&mut next, record.at);
            counts_from = next.deadline.map(|_| record.at);
        }
    }

    // The last record is kept with the value, as its writer had it.
    next.records.extend(records.last().cloned());
    next.audited = upon;

    // The second record of that step is not in `AUDIT`: its value was lost, or the backup ended between the two.
    if let (IntentStatus::Rescheduled, Some(last)) = (next.status, records.last()) {
        make_pending(&mut next, last)?;
        counts_from = next.deadline.map(|_| last.at);
    }

    Ok(Refolded {
        value: next,
        counts_from,
    })
}

/// Applies the step of `record` to `value`.
fn take_in(value: &mut Intent, record: &IntentRecord) -> Result<(), ParseEventIdError> {
    value.n = record.n;
    value.status = record.to;
    // An ended intent has no next time.
    value.due = record.due.filter(|_| !record.to.is_final());

    if let Some(rejection) = &record.rejection {
        value.rejection = Some(rejection.clone());
    }

    if let Some(lineage) = record.lineage.as_deref() {
        note_lineage(value, lineage);
    }

    match record.to {
        IntentStatus::Running => {
            let nominal = record.due.unwrap_or(record.at);
            value.fired = value.fired.saturating_add(1);
            value.running = Some(IntentFiring {
                nominal,
                at: record.at,
                dispatch: firing::dispatch_of(value, nominal)?,
            });
        }
        IntentStatus::Canceled => {
            let firing = value.running.take();
            // A record does not name the canceler: the turn is spared.
            value.withdrawn = firing.and_then(|firing| {
                Some(WithdrawnIntent {
                    nominal: firing.nominal,
                    dispatch: firing.dispatch?,
                    spares_turn: true,
                })
            });
        }
        IntentStatus::Proposed
        | IntentStatus::Pending
        | IntentStatus::Rescheduled
        | IntentStatus::Completed
        | IntentStatus::Failed
        | IntentStatus::Rejected => value.running = None,
    }

    Ok(())
}

fn note_lineage(value: &mut Intent, lineage: &IntentLineage) {
    value.lineage.push(lineage.clone());
    if value.lineage.len() > MAX_LINEAGE {
        value.lineage.remove(0);
    }
    value.intent.schedule = lineage.new.clone();
}

/// Sets the deadline of the schedule that `value` got at `at`.
fn set_deadline(value: &mut Intent, at: UnixMillis) {
    let planned = plan::plan_schedule(&value.intent.schedule, at).ok();
    value.deadline = planned.and_then(|planned| planned.deadline);
}

/// Completes the step of `value` whose first half is `last`, by its new schedule or with its next occurrence.
fn make_pending(value: &mut Intent, last: &IntentRecord) -> Result<(), TakeStepError> {
    let (due, code) = if last.lineage.is_some() {
        let planned = plan::plan_schedule(&value.intent.schedule, last.at).ok();
        set_deadline(value, last.at);
        (planned.and_then(|planned| planned.due), IntentCode::Rearmed)
    } else {
        let after = last.due.map_or(last.at, |due| due.max(last.at));
        (occurrence_after(value, after), IntentCode::NextOccurrence)
    };

    // Without a time the intent would wait for ever.
    value.due = due.or_else(|| last.due.filter(|_| value.deadline.is_none()));
    let cause = StepCause {
        by: &last.by,
        why: &last.why,
        at: last.at,
    };

    machine::rearm(value, code, cause)
}

#[cfg(test)]
mod tests;
