//! Samples of what HookIntents are made of.

use serde_json::json;
use shared::model::approval::{ApprovalRequest, ApprovalStatus, ConfirmationTerms};
use shared::model::dispatch::DeliveryContext;
use shared::model::event::EventId;
use shared::model::intent::book::{AgentBook, IntentBooking, RateCharge};
use shared::model::intent::mark::IntentMark;
use shared::model::intent::service::ProposeIntent;
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{
    ApprovalRequirement, EventMatch, HookIntent, Intent, IntentCode, IntentFiring, IntentLineage, IntentRecord,
    IntentRejection, IntentSchedule, IntentScope, IntentStatus, IntentWish, WithdrawnIntent,
};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::position::StreamPosition;
use shared::model::time::UnixMillis;
use ulid::Ulid;

const AT: UnixMillis = UnixMillis(1_700_000_000_000);

const fn ulid(number: u128) -> Ulid {
    Ulid::from_parts(1_700_000_000_000, number)
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn at() -> IntentSchedule {
    IntentSchedule::At {
        local: "2026-11-23T08:00".to_owned(),
        zone: "Europe/Berlin".to_owned(),
    }
}

/// A question to the scheduler, with every field set.
pub(crate) fn proposal() -> ProposeIntent {
    ProposeIntent {
        id: Some(ulid(7)),
        wish: IntentWish {
            kind: "remind".to_owned(),
            parameters: [("text".to_owned(), json!("stretch"))].into_iter().collect(),
            schedule: IntentSchedule::After { seconds: 90 },
            scope: IntentScope::default(),
            approval: Some(ApprovalRequirement::default()),
            expires_at: Some(AT),
            reason: "they asked for it".to_owned(),
            supersedes: Some(ulid(6)),
            cancel_on_user_turn: true,
        },
        agent: "default".to_owned(),
        session: "main".to_owned(),
        turn: Some(ulid(5)),
        permissions: PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        },
        delivery_context: DeliveryContext {
            channel: "telegram".to_owned(),
            account_id: some("main"),
            peer_id: some("-100"),
            ..DeliveryContext::default()
        },
        causation: Some(EventId::parse("telegram:main/-100/42").expect("an id")),
    }
}

pub(crate) fn schedules() -> Vec<IntentSchedule> {
    vec![
        at(),
        IntentSchedule::After { seconds: 90 },
        IntentSchedule::Cron {
            expression: "0 9 * * mon-fri".to_owned(),
            zone: "UTC".to_owned(),
            until: "2027-01-01T00:00".to_owned(),
        },
        IntentSchedule::Rrule {
            rule: "FREQ=DAILY;COUNT=5".to_owned(),
            start: "2026-11-23T08:00".to_owned(),
            zone: "UTC".to_owned(),
        },
        IntentSchedule::UserIdle {
            for_seconds: 600,
            deadline_seconds: 86_400,
        },
        IntentSchedule::ChatEnded {
            idle_seconds: 1_800,
            deadline_seconds: 86_400,
        },
        IntentSchedule::EventMatches {
            matches: EventMatch {
                channel: some("email"),
                peer: some("inbox"),
                from: some("x@example.org"),
                contains: some("invoice"),
            },
            deadline_seconds: 86_400,
        },
    ]
}

fn hook_intent(schedule: IntentSchedule) -> HookIntent {
    HookIntent {
        id: ulid(1),
        kind: "remind".to_owned(),
        parameters: [("subject".to_owned(), json!("interview"))].into_iter().collect(),
        schedule,
        scope: IntentScope::Thread {
            thread: "t1".to_owned(),
        },
        approval: ApprovalRequirement::BeforeFire,
        agent: "default".to_owned(),
        session: "main".to_owned(),
        turn: Some(ulid(2)),
        expires_at: Some(AT.plus(9)),
        reason: "an interview".to_owned(),
        supersedes: Some(ulid(3)),
        cancel_on_user_turn: true,
    }
}

pub(crate) fn rejections() -> Vec<IntentRejection> {
    let text = |text: &str| text.to_owned();
    vec![
        IntentRejection::UnknownKind { kind: text("dance") },
        IntentRejection::BadParameters {
            path: text("/subject"),
            why: text("is missing"),
        },
        IntentRejection::NoCapability {
            capability: text("send_message"),
        },
        IntentRejection::OverBudget {
            budget: text("tokens"),
            limit: 10,
            needed: 20,
        },
        IntentRejection::TooManyPending { limit: 100 },
        IntentRejection::Sensitivity { why: text("too much") },
        IntentRejection::BadSchedule { why: text("past") },
        IntentRejection::Expired,
    ]
}

fn lineage() -> IntentLineage {
    IntentLineage {
        old: IntentSchedule::After { seconds: 90 },
        new: at(),
        old_due: Some(AT.plus(90_000)),
        by: "agent:default".to_owned(),
        why: "moved".to_owned(),
        at: AT.plus(2),
    }
}

pub(crate) fn record() -> IntentRecord {
    IntentRecord {
        intent: ulid(1),
        agent: "default".to_owned(),
        n: 3,
        at: AT,
        from: Some(IntentStatus::Pending),
        to: IntentStatus::Rescheduled,
        code: IntentCode::Rescheduled,
        by: "agent:default".to_owned(),
        why: "moved".to_owned(),
        due: Some(AT.plus(5)),
        rejection: Some(IntentRejection::Expired),
        lineage: Some(Box::new(lineage())),
        proposed: Some(Box::new(hook_intent(at()))),
    }
}

pub(crate) fn intent(schedule: IntentSchedule) -> Intent {
    Intent {
        intent: hook_intent(schedule),
        status: IntentStatus::Running,
        n: 3,
        records: vec![record()],
        audited: 7,
        due: Some(AT.plus(5)),
        deadline: Some(AT.plus(50)),
        events_from: 11,
        events_position: None,
        fired: 2,
        running: Some(IntentFiring {
            nominal: AT.plus(5),
            at: AT.plus(6),
            dispatch: Some(ulid(4)),
        }),
        withdrawn: None,
        permissions: PermissionSet {
            level: PermissionLevel::Restricted,
            tools: None,
            credentials: None,
        },
        delivery_context: DeliveryContext {
            channel: "webchat".to_owned(),
            account_id: None,
            peer_id: some("v1"),
            thread_id: None,
            reply_to_id: None,
        },
        asked_in: None,
        depth: 1,
        proposed_at: AT,
        rejection: Some(IntentRejection::Expired),
        lineage: vec![lineage()],
        writer: "scheduler-svc-0/4".to_owned(),
    }
}

pub(crate) fn book() -> AgentBook {
    let booking = IntentBooking {
        due: Some(AT),
        firings: 1,
        tokens: 4_000,
    };

    AgentBook {
        bookings: [(ulid(1), booking)].into_iter().collect(),
        spent: [(19_675, RateCharge { firings: 2, tokens: 9 })].into_iter().collect(),
        writer: "scheduler-svc-0/4".to_owned(),
    }
}

pub(crate) fn timer() -> IntentTimer {
    IntentTimer {
        intent: ulid(1),
        agent: "default".to_owned(),
        purpose: TimerPurpose::Fire,
        nominal: AT,
    }
}

pub(crate) fn mark() -> IntentMark {
    IntentMark {
        intent: ulid(1),
        agent: "default".to_owned(),
        matches: EventMatch {
            channel: some("email"),
            ..EventMatch::default()
        },
        from: 11,
        position: None,
        at: AT,
    }
}

fn position() -> StreamPosition {
    StreamPosition {
        incarnation: "4f0c".to_owned(),
        sequence: 11,
        stored_at_ns: 1_700_000_000_123_456_789,
    }
}

/// A mark and an intent that name the message behind which events count.
pub(crate) fn placed() -> (IntentMark, Intent) {
    let mark = IntentMark {
        position: Some(position()),
        ..mark()
    };
    let intent = Intent {
        events_position: Some(position()),
        ..intent(at())
    };
    (mark, intent)
}

pub(crate) fn confirmation() -> ConfirmationTerms {
    ConfirmationTerms {
        request: ApprovalRequest {
            id: "intent.01".to_owned(),
            call: "c".to_owned(),
            tool: "hook_intent".to_owned(),
            arguments: json!({ "kind": "remind" }),
            arguments_hash: "00ff".to_owned(),
            policy: "kind".to_owned(),
            approvers: vec!["owner".to_owned()],
            expires_at: AT.plus(900_000),
            asked_in: None,
        },
        status: ApprovalStatus::Approved,
        requested_by: "default".to_owned(),
        requested_at: AT,
        decided_at: Some(AT.plus(1)),
        decided_by: some("casey"),
        response: some("fine"),
        trail: shared::model::approval::ApprovalTrail::default(),
    }
}

/// Withdrawn while its turn ran.
pub(crate) fn withdrawn() -> Intent {
    Intent {
        status: IntentStatus::Canceled,
        running: None,
        withdrawn: Some(WithdrawnIntent {
            nominal: AT.plus(5),
            dispatch: ulid(4),
            spares_turn: true,
        }),
        ..intent(at())
    }
}
