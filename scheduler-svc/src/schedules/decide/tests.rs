use proptest::prelude::*;
use shared::model::schedule::{SchedulePause, SchedulePolicies, ScheduleTarget};

use super::*;

const MINUTE: i64 = 60_000;
/// The instant 2026-11-22 12:00 UTC.
const NOON: UnixMillis = UnixMillis(1_795_348_800_000);

fn record(schedule: &str, policies: SchedulePolicies) -> ScheduleRecord {
    let spec = ScheduleSpec {
        id: "config:test".to_owned(),
        schedule: schedule.to_owned(),
        zone: "Europe/Berlin".to_owned(),
        target: ScheduleTarget::Config("test".to_owned()),
        policies,
        active_hours: None,
        content: String::new(),
        metadata: serde_json::Map::new(),
    };

    ScheduleRecord::new(spec, NOON)
}

fn look(record: &ScheduleRecord, now: UnixMillis, under_way: Option<UnderWay>) -> ScheduleDecision {
    let plan = SchedulePlan {
        spec: &record.spec,
        schedule: Schedule::parse(&record.spec.schedule, &record.spec.zone).expect("a schedule"),
        zone: TimeZone::get(&record.spec.zone).expect("a zone"),
    };
    decide_next(record, &plan, now, under_way)
}

fn write(record: &ScheduleRecord, minutes: i64, under_way: Option<UnderWay>) -> ScheduleRecord {
    match look(record, NOON.plus(minutes * MINUTE), under_way) {
        ScheduleDecision::Write(after) => *after,
        decision @ (ScheduleDecision::Nothing | ScheduleDecision::Ask) => panic!("{decision:?}"),
    }
}

/// Returns a record that has fired at 12:10 and has computed its next firing.
fn running(policies: SchedulePolicies) -> ScheduleRecord {
    let first = write(&record("every 10m", policies), 0, None);
    write(&first, 10, None)
}

fn minutes(instants: &[UnixMillis]) -> Vec<i64> {
    instants.iter().map(|at| at.since(NOON) / MINUTE).collect()
}

fn missed(missed: MissedPolicy) -> SchedulePolicies {
    SchedulePolicies {
        missed,
        overlap: OverlapPolicy::Allow,
        ..SchedulePolicies::default()
    }
}

#[test]
fn a_new_schedule_learns_what_is_next_and_then_waits() {
    let new = record("every 10m", SchedulePolicies::default());
    let after = write(&new, 0, None);
    assert_eq!(after.next.map(|next| minutes(&[next.nominal])), Some(vec![10]));
    assert_eq!((after.generation, after.firing.len()), (new.generation + 1, 0));
    assert_eq!(look(&after, NOON.plus(9 * MINUTE), None), ScheduleDecision::Nothing);
}

#[test]
fn what_is_due_fires_once_and_the_next_follows() {
    let fired = running(SchedulePolicies::default());
    assert_eq!((minutes(&fired.firing), fired.fired, fired.skipped), (vec![10], 1, 0));
    assert_eq!(fired.next.map(|next| minutes(&[next.nominal])), Some(vec![20]));
    assert_eq!(look(&fired, NOON.plus(10 * MINUTE), None), ScheduleDecision::Nothing);
}

#[test]
fn after_an_hour_of_nobody_each_policy_is_honoured() {
    let made_up = |policy| {
        let after = write(&running(missed(policy)), 75, None);
        (
            minutes(&after.firing),
            after.skipped,
            after.next.map(|next| minutes(&[next.nominal])),
        )
    };

    let next = Some(vec![80]);
    assert_eq!(made_up(MissedPolicy::Skip), (vec![], 6, next.clone()));
    assert_eq!(made_up(MissedPolicy::FireOnce), (vec![70], 5, next.clone()));
    assert_eq!(made_up(MissedPolicy::All), (vec![70], 5, next));
}

#[test]
fn a_wider_window_makes_up_for_more_but_ten_at_most() {
    let mut policies = missed(MissedPolicy::All);
    policies.catchup_window_ms = Some(3_600_000 * 24);
    let after = write(&running(policies), 185, None);
    assert_eq!(
        minutes(&after.firing),
        [90, 100, 110, 120, 130, 140, 150, 160, 170, 180]
    );
    assert_eq!(after.skipped, 7);
}

#[test]
fn a_one_shot_fires_within_a_day_or_never() {
    let shot = write(&record("at 2026-11-22T14:00", SchedulePolicies::default()), 0, None);
    let late = write(&shot, 60 + 23 * 60, None);
    assert_eq!((minutes(&late.firing), late.next), (vec![60], None));
    let too_late = write(&shot, 60 + 25 * 60, None);
    assert_eq!(
        (minutes(&too_late.firing), too_late.next, too_late.skipped),
        (vec![], None, 1)
    );
    assert_eq!(
        look(&too_late, NOON.plus(10_000 * MINUTE), None),
        ScheduleDecision::Nothing
    );
}

#[test]
fn while_one_is_under_way_the_next_is_left_out_or_waits() {
    let mut buffer = SchedulePolicies::default();
    assert_eq!(
        look(&running(buffer.clone()), NOON.plus(20 * MINUTE), None),
        ScheduleDecision::Ask
    );

    let skipped = write(&running(buffer.clone()), 20, Some(UnderWay::Yes));
    assert_eq!((skipped.firing.len(), skipped.skipped, skipped.buffered), (0, 1, None));

    buffer.overlap = OverlapPolicy::BufferOne;
    let held = write(&running(buffer), 20, Some(UnderWay::Yes));
    let waiting = held.buffered.expect("one waits");

    assert_eq!((minutes(&[waiting.nominal]), held.skipped), (vec![20], 0));
    assert_eq!(held.timer_due(), Some(waiting.look_at));

    let still = write(&held, 21, Some(UnderWay::Yes));
    assert_eq!(
        (still.buffered.map(|b| b.nominal), still.skipped),
        (Some(waiting.nominal), 0)
    );

    let second = write(&still, 30, Some(UnderWay::Yes));
    assert_eq!(
        (second.buffered.map(|b| b.nominal), second.skipped),
        (Some(waiting.nominal), 1)
    );

    let free = write(&second, 31, Some(UnderWay::No));
    assert_eq!((minutes(&free.firing), free.buffered), (vec![20], None));
    assert_eq!(free.next.map(|next| minutes(&[next.nominal])), Some(vec![40]));
}

#[test]
fn what_has_waited_fires_alone_and_what_is_due_with_it_waits_in_turn() {
    let policies = SchedulePolicies {
        overlap: OverlapPolicy::BufferOne,
        ..SchedulePolicies::default()
    };
    let held = write(&running(policies), 20, Some(UnderWay::Yes));
    let freed = write(&held, 30, Some(UnderWay::No));

    assert_eq!(
        (minutes(&freed.firing), freed.fired, freed.skipped),
        (vec![20], held.fired + 1, 0)
    );

    let waiting = freed.buffered.expect("the one of now waits");
    assert_eq!(
        (minutes(&[waiting.nominal]), freed.timer_due()),
        (vec![30], Some(waiting.look_at))
    );

    assert_eq!(look(&freed, NOON.plus(31 * MINUTE), None), ScheduleDecision::Ask);

    let last = write(&freed, 31, Some(UnderWay::No));
    assert_eq!(
        (minutes(&last.firing), last.buffered, last.skipped),
        (vec![30], None, 0)
    );
}

#[test]
fn what_nobody_can_tell_of_is_under_way_for_an_hour() {
    let mut policies = SchedulePolicies {
        catchup_window_ms: Some(7_200_000),
        ..SchedulePolicies::default()
    };
    let left_out = write(&running(policies.clone()), 20, Some(UnderWay::Unknown));
    assert_eq!((left_out.firing.len(), left_out.skipped), (0, 1));
    assert!(!gives_up_waiting(
        &running(policies.clone()),
        &left_out,
        NOON.plus(20 * MINUTE)
    ));

    let later = write(&left_out, 80, None);
    assert_eq!(minutes(&later.firing), [80], "it does not stand for ever");
    assert!(gives_up_waiting(&left_out, &later, NOON.plus(80 * MINUTE)));

    policies.overlap = OverlapPolicy::BufferOne;
    let waits = write(&running(policies), 20, Some(UnderWay::Unknown));
    assert_eq!((waits.firing.len(), waits.buffered.is_some()), (0, true));

    let later = write(&waits, 72, None);
    assert!(!later.firing.is_empty(), "{later:?}");
    assert!(gives_up_waiting(&waits, &later, NOON.plus(72 * MINUTE)));
}

#[test]
fn a_persona_that_has_not_beaten_lately_is_not_held_back_by_what_nobody_can_tell() {
    let mut fresh = record("every 10m", SchedulePolicies::default());
    fresh.spec.target = ScheduleTarget::Persona("ann".to_owned());
    let fresh = write(&fresh, 0, None);
    assert_eq!(look(&fresh, NOON.plus(10 * MINUTE), None), ScheduleDecision::Ask);
    let beats = write(&fresh, 10, Some(UnderWay::Unknown));
    assert_eq!(minutes(&beats.firing), [10]);
    assert!(write(&beats, 20, Some(UnderWay::Unknown)).firing.is_empty());
}

#[test]
fn what_never_ends_does_not_hold_back_for_ever() {
    let policies = SchedulePolicies {
        catchup_window_ms: Some(7_200_000),
        ..SchedulePolicies::default()
    };
    let after = write(&running(policies), 80, None);
    assert_eq!(minutes(&after.firing), [80], "nobody was asked");
}

#[test]
fn nothing_fires_while_paused() {
    let mut paused = running(SchedulePolicies::default());
    paused.paused = Some(SchedulePause {
        note: "holiday".to_owned(),
        by: "operator".to_owned(),
        at: NOON,
    });
    let after = write(&paused, 20, None);
    assert_eq!((after.next, after.firing.len()), (None, 0));
    assert_eq!(look(&after, NOON.plus(500 * MINUTE), None), ScheduleDecision::Nothing);
}

#[test]
fn other_zone_data_make_another_next() {
    // The next firing of older data: an hour off. Decisions made already stay.
    let mut record = write(&record("cron 0 20 * * *", SchedulePolicies::default()), 0, None);
    let right = record.next;
    record.next = right.map(|next| NextFiring {
        nominal: next.nominal.plus(60 * MINUTE),
        due: next.due.plus(60 * MINUTE),
    });
    let after = write(&record, 1, None);
    assert_eq!((after.next, after.generation), (right, record.generation + 1));
}

#[test]
fn a_heartbeat_beats_in_its_hours_only() {
    let mut record = record("every 1h", SchedulePolicies::default());
    record.spec.active_hours = Some(ActiveHours {
        from_minute: 22 * 60,
        until_minute: 2 * 60,
    });

    let plan = SchedulePlan {
        spec: &record.spec,
        schedule: Schedule::parse("every 1h", "UTC").expect("a schedule"),
        zone: TimeZone::get("Europe/Berlin").expect("a zone"),
    };
    let beats: Vec<UnixMillis> = plan.next_firings(NOON, 5).iter().map(|next| next.nominal).collect();
    assert_eq!(
        minutes(&beats),
        [540, 600, 660, 720, 1_980],
        "22, 23, 0 and 1 o'clock in Berlin"
    );
}

proptest! {
    #[test]
    fn every_nominal_time_is_decided_on_once_whatever_the_looks(
        steps in proptest::collection::vec((1_i64..200, 0_usize..3), 1..30), policy in 0_usize..3, overlap in 0_usize..3,
        jitter_ms in prop_oneof![Just(0_u64), 1_u64..200_000]
    ) {
        let policies = SchedulePolicies {
            missed: [MissedPolicy::Skip, MissedPolicy::FireOnce, MissedPolicy::All][policy],
            overlap: [OverlapPolicy::Skip, OverlapPolicy::BufferOne, OverlapPolicy::Allow][overlap],
            catchup_window_ms: Some(1_800_000),
            jitter_ms,
        };
        let mut record = record("every 7m", policies);
        let mut now = NOON;
        let mut fired: Vec<UnixMillis> = Vec::new();
        for (step, answer) in steps {
            now = now.plus(step * MINUTE / 3);
            let under_way = [None, Some(UnderWay::Yes), Some(UnderWay::No)][answer];
            let decision = match look(&record, now, under_way) {
                ScheduleDecision::Ask => look(&record, now, Some(UnderWay::No)),
                decision @ (ScheduleDecision::Nothing | ScheduleDecision::Write(_)) => decision,
            };
            if let ScheduleDecision::Write(after) = decision {
                prop_assert!(after.generation == record.generation + 1);
                prop_assert!(after.decided_until >= record.decided_until);
                if after.spec.policies.overlap == OverlapPolicy::BufferOne && record.buffered.is_some() {
                    prop_assert!(after.firing.len() <= 1, "an occurrence that has waited fires alone: {after:?}");
                }
                fired.extend(&after.firing);
                record = *after;
            }
            prop_assert!(record.next.is_some_and(|next| next.nominal > record.decided_until));
        }
        let mut once = fired.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), fired.len(), "none twice");
        prop_assert_eq!(record.fired, fired.len() as u64);
        let passed = record.decided_until.0.div_euclid(7 * MINUTE) - NOON.0.div_euclid(7 * MINUTE);
        let held = i64::from(record.buffered.is_some());
        prop_assert_eq!(i64::try_from(record.fired + record.skipped).unwrap_or(0) + held, passed, "none unaccounted for");
    }

    #[test]
    fn jitter_is_bounded_and_the_same_again(nominal in any::<i32>(), jitter_ms in 1_u64..100_000) {
        let policies = SchedulePolicies { jitter_ms, ..SchedulePolicies::default() };
        let record = record("every 7m", policies);
        let plan = SchedulePlan {
            spec: &record.spec,
            schedule: Schedule::parse("every 7m", "UTC").expect("a schedule"),
            zone: TimeZone::UTC,
        };
        let at = UnixMillis(i64::from(nominal));
        prop_assert!((0..i64::try_from(jitter_ms).expect("small")).contains(&plan.jitter_ms(at)));
        prop_assert_eq!(plan.jitter_ms(at), plan.jitter_ms(at));
    }
}
