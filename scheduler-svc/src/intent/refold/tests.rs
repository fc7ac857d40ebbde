use serde_json::{Map, Value};
use shared::model::dispatch::DeliveryContext;
use shared::model::intent::{
    ApprovalRequirement, EventMatch, HookIntent, IntentRejection, IntentSchedule, IntentScope,
};
use shared::model::permission::PermissionSet;
use shared::model::position::StreamPosition;
use ulid::Ulid;

use super::*;
use crate::intent::firing::SEND_MESSAGE;
use crate::intent::machine::{AdmissionContext, FiringEnd};
use crate::intent::plan::IntentPlan;

const NOW: UnixMillis = UnixMillis(1_795_305_600_000);
/// Steps of an intent at most.
const STEPS: i64 = 4;

/// A step that somebody takes.
#[derive(Debug, Clone, Copy)]
enum Step {
    Admit,
    Reject,
    /// With a schedule of [`schedules`].
    Reschedule(usize),
    Skip,
    Fire,
    Recur,
    Complete,
    Fail,
    Cancel,
}

const ALL: [Step; 11] = [
    Step::Admit,
    Step::Reject,
    Step::Reschedule(0),
    Step::Reschedule(1),
    Step::Reschedule(2),
    Step::Skip,
    Step::Fire,
    Step::Recur,
    Step::Complete,
    Step::Fail,
    Step::Cancel,
];

/// Once, again and again, and upon a condition.
fn schedules() -> [IntentSchedule; 3] {
    [
        IntentSchedule::After { seconds: 60 },
        IntentSchedule::Cron {
            expression: "* * * * *".to_owned(),
            zone: "UTC".to_owned(),
            until: "2030-01-01T00:00".to_owned(),
        },
        IntentSchedule::EventMatches {
            matches: EventMatch {
                contains: Some("invoice".to_owned()),
                ..EventMatch::default()
            },
            deadline_seconds: 3_600,
        },
    ]
}

fn cause(at: UnixMillis) -> StepCause<'static> {
    let (by, why) = ("runtime", "a test");
    StepCause { by, why, at }
}

fn asked(kind: &str, schedule: IntentSchedule) -> Intent {
    let intent = HookIntent {
        id: Ulid::from_parts(1, 1),
        kind: kind.to_owned(),
        parameters: Map::from_iter([("text".to_owned(), Value::from("hello"))]),
        schedule,
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

    machine::new_intent(intent, setting, cause(NOW))
}

fn planned(schedule: &IntentSchedule, at: UnixMillis) -> IntentPlan {
    plan::plan_schedule(schedule, at).expect("it is sound")
}

/// The value after `value` that `step` makes at `at`; none = there is no such step.
fn taken(value: &Intent, step: Step, at: UnixMillis) -> Option<Intent> {
    let mut next = machine::next_value(value);
    let ended = |code| FiringEnd {
        code,
        why: "a test".to_owned(),
    };
    let events = StreamPosition::default();
    let nominal = value.due.unwrap_or(at);

    let done = match step {
        Step::Admit if value.status != IntentStatus::Proposed => return None,
        Step::Admit => machine::admit_intent(&mut next, &planned(&value.intent.schedule, at), &events, cause(at)),
        Step::Reject => machine::reject_intent(&mut next, IntentRejection::Expired, IntentCode::Refused, cause(at)),
        Step::Reschedule(_) if value.status != IntentStatus::Pending => return None,
        Step::Reschedule(which) => {
            let schedule = schedules()[which].clone();
            let moved = planned(&schedule, at);
            machine::reschedule_intent(&mut next, schedule, &moved, &events, cause(at))
        }
        Step::Skip => {
            let due = value.due.and_then(|due| occurrence_after(value, due.max(at)))?;
            machine::skip_occurrence(&mut next, due, IntentCode::Denied, cause(at))
        }
        Step::Fire => {
            let dispatch = firing::dispatch_of(&next, nominal).expect("an id");
            machine::fire_intent(&mut next, nominal, dispatch, IntentCode::Due, cause(at))
        }
        Step::Recur => {
            let due = occurrence_after(value, at.max(nominal))?;
            machine::end_firing(&mut next, &ended(IntentCode::Done), Some(due), at)
        }
        Step::Complete => machine::end_firing(&mut next, &ended(IntentCode::Done), None, at),
        Step::Fail => machine::end_firing(&mut next, &ended(IntentCode::TurnFailed), None, at),
        Step::Cancel => machine::cancel_intent(&mut next, IntentCode::Withdrawn, true, cause(at)),
    };

    done.ok().map(|()| next)
}

/// All ways that an intent can go from `way`, with each value on them.
fn ways(way: &[Intent], check: &mut impl FnMut(&[Intent])) {
    check(way);
    let (Some(last), steps) = (way.last(), i64::try_from(way.len()).expect("few")) else {
        return;
    };
    if steps > STEPS {
        return;
    }

    for step in ALL {
        if let Some(next) = taken(last, step, NOW.plus(steps * 90_000)) {
            let longer: Vec<Intent> = way.iter().cloned().chain([next]).collect();
            ways(&longer, check);
        }
    }
}

/// The part of `value` that the records tell.
fn told(value: &Intent) -> Intent {
    Intent {
        records: value.records.last().cloned().into_iter().collect(),
        audited: 0,
        ..value.clone()
    }
}

#[test]
fn whatever_was_put_back_is_where_its_records_are() {
    let mut checked = 0_u32;
    for (kind, schedule) in ["remind", SEND_MESSAGE]
        .into_iter()
        .flat_map(|kind| schedules().map(|s| (kind, s)))
    {
        ways(&[asked(kind, schedule)], &mut |way| {
            let Some((last, earlier)) = way.split_last() else {
                return;
            };
            for (index, old) in earlier.iter().enumerate() {
                let behind = way[index + 1..].iter().flat_map(|value| value.records.clone());
                let records: Vec<IntentRecord> = behind.collect();
                let refolded = refold(old, &records, 7).expect("it can be told");

                assert_eq!(refolded.value.audited, 7);
                assert_eq!(told(&refolded.value), told(last), "{records:#?}");

                checked += 1;
            }
        });
    }

    assert!(checked > 1_000, "{checked}");
}

#[test]
fn a_step_of_which_audit_has_the_first_half_is_ended() {
    let mut checked = 0_u32;
    for schedule in schedules() {
        ways(&[asked("remind", schedule)], &mut |way| {
            let Some((last, [.., old])) = way.split_last() else {
                return;
            };
            let [first, second] = &last.records[..] else { return };
            if first.to != IntentStatus::Rescheduled {
                return;
            }

            let refolded = refold(old, &last.records[..1], 3).expect("it can be told").value;

            assert_eq!(refolded.records, [first.clone(), second.clone()]);
            assert_eq!(told(&refolded), told(last));

            checked += 1;
        });
    }

    assert!(checked > 20, "{checked}");
}

#[test]
fn events_count_for_a_condition_from_the_step_that_set_it() {
    let [_, _, condition] = schedules();
    let asked = asked("remind", condition);
    let admitted = taken(&asked, Step::Admit, NOW.plus(1)).expect("admitted");
    let refolded = refold(&asked, &admitted.records, 1).expect("it can be told");
    assert_eq!(refolded.counts_from, Some(NOW.plus(1)));

    let moved = taken(&admitted, Step::Reschedule(0), NOW.plus(2)).expect("moved");
    let refolded = refold(&admitted, &moved.records, 1).expect("it can be told");
    assert_eq!(refolded.counts_from, None, "it has a time of its own now");

    let back = taken(&moved, Step::Reschedule(2), NOW.plus(3)).expect("moved");
    let fired = taken(&back, Step::Fire, NOW.plus(4)).expect("fired");
    let records: Vec<IntentRecord> = back.records.iter().chain(&fired.records).cloned().collect();
    let refolded = refold(&moved, &records, 1).expect("it can be told");
    assert_eq!(refolded.counts_from, Some(NOW.plus(3)));
}
