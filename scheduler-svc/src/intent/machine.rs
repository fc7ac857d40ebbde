//! The lifecycle of an intent: each step changes a value to the next one, or fails if the lifecycle does not have it.
//! *Pure.*
//!
//! A step never writes: the result is written by compare-and-set, after the records of the previous value are in
//! `AUDIT`. Steps that occur together (proposed and pending, rescheduled and pending) are one value with two records.
//! Source: `docs/design/schedules.md` §3.7 (Lifecycle); seed 000 §3.

use shared::model::dispatch::DeliveryContext;
use shared::model::intent::{
    HookIntent, Intent, IntentCode, IntentFiring, IntentLineage, IntentRecord, IntentRejection, IntentSchedule,
    IntentStatus, MAX_LINEAGE, WithdrawnIntent,
};
use shared::model::permission::PermissionSet;
use shared::model::position::StreamPosition;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::plan::IntentPlan;

/// Error of a step that the lifecycle does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an intent that is {from} cannot become {to}")]
pub struct TakeStepError {
    /// State before the step.
    pub from: IntentStatus,
    /// State that was requested.
    pub to: IntentStatus,
}

/// Author, time and reason of a step.
#[derive(Debug, Clone, Copy)]
pub struct StepCause<'a> {
    /// Author: `agent:{persona}`, `runtime`, or an operator's name.
    pub by: &'a str,
    /// Reason in words, for people.
    pub why: &'a str,
    /// Time of the step.
    pub at: UnixMillis,
}

/// The end of a firing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiringEnd {
    /// Code of the end: `Done`, `TurnFailed`, `TurnInterrupted`, `DispatchDropped` or `NoOutcome`.
    pub code: IntentCode,
    /// Reason in words, for people.
    pub why: String,
}

/// Data of a requested intent besides its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionContext {
    /// Permissions of the intent's turns.
    pub permissions: PermissionSet,
    /// Destination of their replies.
    pub delivery_context: DeliveryContext,
    /// Conversation in which the intent was requested; absent if it is the destination.
    pub asked_in: Option<DeliveryContext>,
    /// Number of intents before this one in its chain.
    pub depth: u8,
}

/// Returns the value of an intent that was just requested.
#[must_use]
pub fn new_intent(intent: HookIntent, setting: AdmissionContext, cause: StepCause<'_>) -> Intent {
    let mut value = Intent {
        status: IntentStatus::Proposed,
        n: 0,
        records: Vec::new(),
        audited: 0,
        due: None,
        deadline: None,
        events_from: 0,
        events_position: None,
        fired: 0,
        running: None,
        withdrawn: None,
        permissions: setting.permissions,
        delivery_context: setting.delivery_context,
        asked_in: setting.asked_in,
        depth: setting.depth,
        proposed_at: cause.at,
        rejection: None,
        lineage: Vec::new(),
        writer: String::new(),
        intent,
    };

    record_step(&mut value, None, IntentStatus::Proposed, IntentCode::Proposed, cause);
    // The first record holds the whole request, so that `AUDIT` alone can tell it.
    let proposed = Some(Box::new(value.intent.clone()));
    if let Some(record) = value.records.last_mut() {
        record.proposed = proposed;
    }

    value
}

/// Returns a copy of `value` without its records, to be changed by the next step.
#[must_use]
pub fn next_value(value: &Intent) -> Intent {
    Intent {
        records: Vec::new(),
        ..value.clone()
    }
}

/// Admits `value`, to fire by `plan`. Only events after `events` count for its condition.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not proposed or rescheduled.
pub fn admit_intent(
    value: &mut Intent,
    plan: &IntentPlan,
    events: &StreamPosition,
    cause: StepCause<'_>,
) -> Result<(), TakeStepError> {
    value.due = plan.due;
    value.deadline = plan.deadline;
    count_from(value, events);
    step(value, IntentStatus::Pending, IntentCode::Admitted, cause)
}

/// Rejects `value` because of `rejection`.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not proposed.
pub fn reject_intent(
    value: &mut Intent,
    rejection: IntentRejection,
    code: IntentCode,
    cause: StepCause<'_>,
) -> Result<(), TakeStepError> {
    step(value, IntentStatus::Rejected, code, cause)?;
    if let Some(record) = value.records.last_mut() {
        record.rejection = Some(rejection.clone());
    }
    value.rejection = Some(rejection);
    Ok(())
}

/// Fires `value` at `nominal`. `dispatch` is the id of the dispatch, if the kind runs a turn.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not pending.
pub fn fire_intent(
    value: &mut Intent,
    nominal: UnixMillis,
    dispatch: Option<Ulid>,
    code: IntentCode,
    cause: StepCause<'_>,
) -> Result<(), TakeStepError> {
    value.due = Some(nominal);
    step(value, IntentStatus::Running, code, cause)?;
    value.fired += 1;
    value.running = Some(IntentFiring {
        nominal,
        at: cause.at,
        dispatch,
    });

    Ok(())
}

/// Ends the firing of `value`. `next` is the time of the next occurrence, if it recurs.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not running.
pub fn end_firing(
    value: &mut Intent,
    ending: &FiringEnd,
    next: Option<UnixMillis>,
    at: UnixMillis,
) -> Result<(), TakeStepError> {
    let cause = StepCause {
        by: "runtime",
        why: &ending.why,
        at,
    };
    let done = ending.code == IntentCode::Done;
    // A recurring intent goes on, no matter how one firing ended.
    let (to, code) = match next {
        Some(_) => (IntentStatus::Pending, IntentCode::NextOccurrence),
        None if done => (IntentStatus::Completed, ending.code),
        None => (IntentStatus::Failed, ending.code),
    };

    // The record contains the time, so it is set before the step.
    if next.is_some() {
        value.due = next;
    }

    step(value, to, code, cause)?;
    value.running = None;

    if next.is_none() {
        value.due = None;
    }

    Ok(())
}

/// Cancels `value`. The dispatch of a firing under way is to be withdrawn; `spares_turn` says that the firing's own
/// turn requested it and goes on.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent has ended.
pub fn cancel_intent(
    value: &mut Intent,
    code: IntentCode,
    spares_turn: bool,
    cause: StepCause<'_>,
) -> Result<(), TakeStepError> {
    value.due = None;
    step(value, IntentStatus::Canceled, code, cause)?;
    let running = value.running.take();

    value.withdrawn = running.and_then(|firing| {
        Some(WithdrawnIntent {
            nominal: firing.nominal,
            dispatch: firing.dispatch?,
            spares_turn,
        })
    });

    Ok(())
}

/// Skips the present occurrence of `value` because of `code`, and waits for the one at `next`: one value with two
/// records.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not pending.
pub fn skip_occurrence(
    value: &mut Intent,
    next: UnixMillis,
    code: IntentCode,
    cause: StepCause<'_>,
) -> Result<(), TakeStepError> {
    step(value, IntentStatus::Rescheduled, code, cause)?;
    value.due = Some(next);
    step(value, IntentStatus::Pending, IntentCode::NextOccurrence, cause)
}

/// Changes the schedule of `value` and makes it pending again: one value with two records, and the same intent.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not pending.
pub fn reschedule_intent(
    value: &mut Intent,
    schedule: IntentSchedule,
    plan: &IntentPlan,
    events: &StreamPosition,
    cause: StepCause<'_>,
) -> Result<(), TakeStepError> {
    let lineage = IntentLineage {
        old: value.intent.schedule.clone(),
        new: schedule.clone(),
        old_due: value.due,
        by: cause.by.to_owned(),
        why: cause.why.to_owned(),
        at: cause.at,
    };

    step(value, IntentStatus::Rescheduled, IntentCode::Rescheduled, cause)?;

    // The record holds the change of the schedule: the value keeps only the last ones.
    if let Some(record) = value.records.last_mut() {
        record.lineage = Some(Box::new(lineage.clone()));
    }

    value.lineage.push(lineage);

    if value.lineage.len() > MAX_LINEAGE {
        value.lineage.remove(0);
    }

    value.intent.schedule = schedule;
    value.due = plan.due;
    value.deadline = plan.deadline;
    count_from(value, events);

    step(value, IntentStatus::Pending, IntentCode::Rearmed, cause)
}

/// Makes `value` pending after its last record says that it was rescheduled: the second half of that step.
///
/// # Errors
/// Returns [`TakeStepError`] if the intent is not rescheduled.
pub fn rearm(value: &mut Intent, code: IntentCode, cause: StepCause<'_>) -> Result<(), TakeStepError> {
    step(value, IntentStatus::Pending, code, cause)
}

/// Sets the position in `EVENTS` after which events count for the condition of `value`.
pub fn count_from(value: &mut Intent, events: &StreamPosition) {
    value.events_from = events.sequence;
    value.events_position = (events.sequence > 0).then(|| events.clone());
}

fn step(value: &mut Intent, to: IntentStatus, code: IntentCode, cause: StepCause<'_>) -> Result<(), TakeStepError> {
    let from = value.status;
    if !from.may_become(to) {
        return Err(TakeStepError { from, to });
    }
    record_step(value, Some(from), to, code, cause);
    Ok(())
}

fn record_step(
    value: &mut Intent,
    from: Option<IntentStatus>,
    to: IntentStatus,
    code: IntentCode,
    cause: StepCause<'_>,
) {
    // Numbers without gaps, so that a missing record is noticed.
    value.n += 1;
    value.status = to;

    value.records.push(IntentRecord {
        intent: value.intent.id,
        agent: value.intent.agent.clone(),
        n: value.n,
        at: cause.at,
        from,
        to,
        code,
        by: cause.by.to_owned(),
        why: cause.why.to_owned(),
        due: value.due,
        rejection: None,
        lineage: None,
        proposed: None,
    });
}

#[cfg(test)]
mod tests;
