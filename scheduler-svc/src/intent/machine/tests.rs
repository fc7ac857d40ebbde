use serde_json::Map;
use shared::model::intent::{ApprovalRequirement, IntentScope};
use shared::model::position::StreamPosition;

use super::*;

const NOW: UnixMillis = UnixMillis(1_795_305_600_000);
const CAUSE: StepCause<'static> = StepCause {
    by: "runtime",
    why: "a test",
    at: NOW,
};

fn plan() -> IntentPlan {
    IntentPlan {
        rings: NOW.plus(60_000),
        due: Some(NOW.plus(60_000)),
        deadline: None,
        per_day: 1,
    }
}

fn asked() -> Intent {
    let intent = HookIntent {
        id: Ulid::from_parts(1, 1),
        kind: "remind".to_owned(),
        parameters: Map::new(),
        schedule: IntentSchedule::After { seconds: 60 },
        scope: IntentScope::Own,
        approval: ApprovalRequirement::None,
        agent: "default".to_owned(),
        session: "main".to_owned(),
        turn: None,
        expires_at: None,
        reason: String::new(),
        supersedes: None,
        cancel_on_user_turn: false,
    };

    let setting = AdmissionContext {
        permissions: PermissionSet::default(),
        delivery_context: DeliveryContext::default(),
        asked_in: None,
        depth: 0,
    };

    new_intent(intent, setting, CAUSE)
}

/// Every step there is, by the status that it leads to.
fn take(value: &mut Intent, to: IntentStatus) -> Result<(), TakeStepError> {
    let done = |code| FiringEnd {
        code,
        why: String::new(),
    };
    match (value.status, to) {
        (IntentStatus::Running, IntentStatus::Pending) => {
            end_firing(value, &done(IntentCode::Done), Some(NOW.plus(9)), NOW)
        }
        (_, IntentStatus::Proposed) => step(value, to, IntentCode::Proposed, CAUSE),
        (_, IntentStatus::Pending) => admit_intent(value, &plan(), &StreamPosition::default(), CAUSE),
        (_, IntentStatus::Running) => fire_intent(value, NOW.plus(60_000), None, IntentCode::Due, CAUSE),
        (_, IntentStatus::Completed) => end_firing(value, &done(IntentCode::Done), None, NOW),
        (_, IntentStatus::Failed) => end_firing(value, &done(IntentCode::TurnFailed), None, NOW),
        (_, IntentStatus::Canceled) => cancel_intent(value, IntentCode::Withdrawn, false, CAUSE),
        (_, IntentStatus::Rescheduled) => reschedule_intent(
            value,
            IntentSchedule::After { seconds: 5 },
            &plan(),
            &StreamPosition::default(),
            CAUSE,
        ),
        (_, IntentStatus::Rejected) => reject_intent(value, IntentRejection::Expired, IntentCode::Refused, CAUSE),
    }
}

/// An intent that stands at `status`, by the shortest way; none for the one that no value stands at.
fn standing(status: IntentStatus) -> Option<Intent> {
    let mut value = asked();
    let way: &[IntentStatus] = match status {
        IntentStatus::Proposed => &[],
        IntentStatus::Pending => &[IntentStatus::Pending],
        IntentStatus::Running => &[IntentStatus::Pending, IntentStatus::Running],
        IntentStatus::Completed => &[IntentStatus::Pending, IntentStatus::Running, IntentStatus::Completed],
        IntentStatus::Failed => &[IntentStatus::Pending, IntentStatus::Running, IntentStatus::Failed],
        IntentStatus::Canceled => &[IntentStatus::Pending, IntentStatus::Canceled],
        IntentStatus::Rejected => &[IntentStatus::Rejected],
        IntentStatus::Rescheduled => return None,
    };

    for next in way {
        take(&mut value, *next).expect("a legal way");
    }

    Some(value)
}

#[test]
fn every_legal_and_illegal_transition() {
    for from in IntentStatus::ALL {
        let Some(value) = standing(from) else { continue };
        for to in IntentStatus::ALL {
            let mut next = next_value(&value);
            let taken = take(&mut next, to);
            if from.may_become(to) {
                assert_eq!(taken, Ok(()), "{from} → {to}");

                let first = &next.records[0];
                assert_eq!((first.from, first.to, first.n), (Some(from), to, value.n + 1));

                let reached = if to == IntentStatus::Rescheduled {
                    IntentStatus::Pending
                } else {
                    to
                };
                assert_eq!(next.status, reached);
            } else {
                assert_eq!(taken, Err(TakeStepError { from, to }), "{from} → {to}");
                assert_eq!(
                    (next.status, next.n, next.records.len()),
                    (from, value.n, 0),
                    "nothing was noted"
                );
            }
        }
    }
}

#[test]
fn numbers_go_on_without_a_gap_and_the_first_record_holds_the_whole() {
    let mut value = asked();
    assert_eq!(value.records[0].proposed.as_deref(), Some(&value.intent));

    take(&mut value, IntentStatus::Pending).expect("legal");
    let mut numbers: Vec<u32> = value.records.iter().map(|record| record.n).collect();
    for to in [
        IntentStatus::Rescheduled,
        IntentStatus::Running,
        IntentStatus::Completed,
    ] {
        value = next_value(&value);
        take(&mut value, to).expect("legal");
        numbers.extend(value.records.iter().map(|record| record.n));
    }

    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn rescheduled_keeps_its_name_and_tells_where_it_came_from() {
    let mut value = standing(IntentStatus::Pending).expect("pending");
    let id = value.intent.id;
    value = next_value(&value);
    take(&mut value, IntentStatus::Rescheduled).expect("legal");

    assert_eq!((value.intent.id, value.status), (id, IntentStatus::Pending));

    let lineage = value.records[0].lineage.clone().expect("lineage");
    assert_eq!(lineage.old, IntentSchedule::After { seconds: 60 });
    assert_eq!(lineage.new, IntentSchedule::After { seconds: 5 });
    assert_eq!((lineage.by.as_str(), lineage.why.as_str()), ("runtime", "a test"));
    assert_eq!(value.lineage.len(), 1);

    for _ in 0..(2 * MAX_LINEAGE) {
        take(&mut value, IntentStatus::Rescheduled).expect("legal");
    }

    assert_eq!(value.lineage.len(), MAX_LINEAGE, "bounded");
}

#[test]
fn a_recurring_one_is_pending_again_until_its_last() {
    let mut value = standing(IntentStatus::Running).expect("running");
    let ending = FiringEnd {
        code: IntentCode::TurnFailed,
        why: "no agent".to_owned(),
    };

    end_firing(&mut value, &ending, Some(NOW.plus(120_000)), NOW).expect("legal");
    let record = value.records.last().expect("a record");
    assert_eq!(
        (record.code, record.why.as_str()),
        (IntentCode::NextOccurrence, "no agent")
    );
    assert_eq!((value.due, &value.running), (Some(NOW.plus(120_000)), &None));
}
