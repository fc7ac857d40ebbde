//! The lifecycle of an intent: each step takes the value as it stands and makes the next one, or says that it may not.
//! *Pure.*
//!
//! A step never writes: what it makes is written by compare-and-set, once the records of the value before it are in
//! `AUDIT`. Steps that arise together (proposed and pending, rescheduled and pending) are one value with two records.
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

/// A step that the lifecycle does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an intent that is {from} cannot become {to}")]
pub struct TakeStepError {
    /// Where it stands.
    pub from: IntentStatus,
    /// Where it should go.
    pub to: IntentStatus,
}

/// Who takes a step, when, and why in words.
#[derive(Debug, Clone, Copy)]
pub struct StepCause<'a> {
    /// `agent:{persona}`, `runtime`, or an operator's name.
    pub by: &'a str,
    /// In words.
    pub why: &'a str,
    /// When.
    pub at: UnixMillis,
}

/// How a firing ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiringEnd {
    /// `Done`, `TurnFailed`, `TurnInterrupted`, `DispatchDropped` or `NoOutcome`.
    pub code: IntentCode,
    /// In words.
    pub why: String,
}

/// What is known of an intent when it is asked for, besides its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionContext {
    /// What its turns may do.
    pub permissions: PermissionSet,
    /// Where their answers go.
    pub delivery_context: DeliveryContext,
    /// Where it was asked for, where that is another conversation.
    pub asked_in: Option<DeliveryContext>,
    /// Intents before it in its chain.
    pub depth: u8,
}

/// An intent that was just asked for.
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
    let proposed = Some(Box::new(value.intent.clone()));
    if let Some(record) = value.records.last_mut() {
        record.proposed = proposed;
    }

    value
}

/// The next value after `value`, without records of its own yet.
#[must_use]
pub fn next_value(value: &Intent) -> Intent {
    Intent {
        records: Vec::new(),
        ..value.clone()
    }
}

/// Admits `value`, to fire by `plan`; events behind `events` count for its condition.
///
/// # Errors
/// [`TakeStepError`].
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

/// Refuses `value`.
///
/// # Errors
/// [`TakeStepError`].
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

/// Fires `value` at `nominal`; its turn is that of `dispatch`.
///
/// # Errors
/// [`TakeStepError`].
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

/// Ends the firing of `value`: where it recurs, `next` says when it fires again.
///
/// # Errors
/// [`TakeStepError`].
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
    let (to, code) = match next {
        Some(_) => (IntentStatus::Pending, IntentCode::NextOccurrence),
        None if done => (IntentStatus::Completed, ending.code),
        None => (IntentStatus::Failed, ending.code),
    };

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

/// Withdraws `value`. The dispatch of a firing under way is to be taken back; `spares_turn` where its own turn wants that.
///
/// # Errors
/// [`TakeStepError`].
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

/// Lets the occurrence at hand of `value` be, because of `code`, and waits for the one at `next`: two records, one value.
///
/// # Errors
/// [`TakeStepError`].
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

/// Gives `value` another schedule, and makes it pending again: two records, one value, the same intent.
///
/// # Errors
/// [`TakeStepError`].
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

/// Makes `value` pending whose last record says that it was rescheduled: the second half of that step.
///
/// # Errors
/// [`TakeStepError`].
pub fn rearm(value: &mut Intent, code: IntentCode, cause: StepCause<'_>) -> Result<(), TakeStepError> {
    step(value, IntentStatus::Pending, code, cause)
}

/// Lets events behind `events` count for the condition of `value`.
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
