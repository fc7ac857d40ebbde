//! Samples of schedules.

use shared::model::schedule::{
    ActiveHours, BufferedFiring, LastFiring, MissedPolicy, NextFiring, OverlapPolicy, SchedulePause, SchedulePolicies,
    ScheduleRecord, ScheduleSpec, ScheduleTarget, ScheduleTimer,
};

use crate::samples::AT;

pub(crate) fn schedule() -> ScheduleRecord {
    let spec = ScheduleSpec {
        id: "hook:a/b:0".to_owned(),
        schedule: "cron 0 9 * * MON-FRI".to_owned(),
        zone: "Europe/Berlin".to_owned(),
        target: ScheduleTarget::Hook("a/b".to_owned()),
        policies: SchedulePolicies {
            overlap: OverlapPolicy::BufferOne,
            missed: MissedPolicy::All,
            catchup_window_ms: Some(60_000),
            jitter_ms: 5,
        },
        active_hours: Some(ActiveHours {
            from_minute: 480,
            until_minute: 1_320,
        }),
        content: "wake".to_owned(),
        metadata: serde_json::Map::from_iter([("k".to_owned(), serde_json::json!(1))]),
    };

    let next = NextFiring {
        nominal: AT.plus(60_000),
        due: AT.plus(60_003),
    };

    ScheduleRecord {
        paused: Some(SchedulePause {
            note: "holiday".to_owned(),
            by: "operator".to_owned(),
            at: AT,
        }),
        next: Some(next),
        last: Some(LastFiring {
            nominal: AT,
            at: AT.plus(7),
        }),
        firing: vec![AT],
        buffered: Some(BufferedFiring {
            nominal: AT,
            look_at: AT.plus(10_000),
        }),
        fired: 3,
        skipped: 2,
        ..ScheduleRecord::new(spec, AT)
    }
}

pub(crate) fn schedule_timer() -> ScheduleTimer {
    ScheduleTimer {
        id: "hook:a/b:0".to_owned(),
        nominal: AT,
        generation: 9,
    }
}
