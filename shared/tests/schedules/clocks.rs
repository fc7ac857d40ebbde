//! The rules for the days on which clocks change, in twenty zones over twenty years.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use shared::model::time::UnixMillis;
use shared::schedule::{Schedule, next_after, next_instants};

/// Whole hours, half hours, both hemispheres, gaps at midnight, negative summer time, none at all.
const ZONES: [&str; 20] = [
    "UTC",
    "America/New_York",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/St_Johns",
    "America/Havana",
    "Atlantic/Azores",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Berlin",
    "Europe/Moscow",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Antarctica/Troll",
];
const HOUR_MS: i64 = 3_600_000;
const FIRST_YEAR: i64 = 1_767_225_600_000;
const LAST_YEAR: i64 = FIRST_YEAR + 20 * 8_766 * HOUR_MS;

/// A change of a zone's clock: when, and what it shows just before and from then on.
struct Change {
    at: Timestamp,
    until: DateTime,
    from: DateTime,
}

fn changes(zone: &TimeZone) -> Vec<Change> {
    let first = Timestamp::from_millisecond(FIRST_YEAR).expect("in range");
    let found = zone.following(first).map(|change| change.timestamp());

    found
        .take_while(|at| at.as_millisecond() < LAST_YEAR)
        .map(|at| {
            let before = at.checked_sub(SignedDuration::from_secs(1)).expect("in range");
            let until = zone.to_datetime(before).checked_add(SignedDuration::from_secs(1));
            Change {
                at,
                until: until.expect("in range"),
                from: zone.to_datetime(at),
            }
        })
        .filter(|change| change.until != change.from)
        .collect()
}

fn parse(text: &str, zone: &str) -> Schedule {
    Schedule::parse(text, zone).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn millis(at: Timestamp) -> UnixMillis {
    UnixMillis(at.as_millisecond())
}

#[test]
fn hourly_rules_leave_no_real_hour_out() {
    let mut seen = 0;
    for name in ZONES {
        let zone = TimeZone::get(name).expect("a zone");
        let hourly = [
            "rrule FREQ=HOURLY",
            "every 1h",
            "cron 0 * * * *",
            "rrule FREQ=HOURLY;BYMINUTE=0",
        ];

        let hourly = hourly.map(|text| (text, parse(text, name)));
        for change in changes(&zone) {
            seen += 1;
            // By the wall clock's minute, a clock that moves by half an hour makes one distance half an hour longer or
            // shorter; by elapsed time nothing moves.
            let moved = (millis_of(change.from) - millis_of(change.until)) % HOUR_MS;
            for (text, schedule) in &hourly {
                let slack = if text.contains('0') { moved.abs() } else { 0 };
                let around = next_instants(schedule, millis(change.at).plus(-30 * HOUR_MS), 60);
                for pair in around.windows(2) {
                    let distance = pair[1].since(pair[0]);
                    assert!(
                        (distance - HOUR_MS).abs() <= slack,
                        "{text} in {name}: {distance} ms after {}",
                        pair[0]
                    );
                }
            }
        }
    }

    assert!(seen > 300, "{seen} changes of clocks were looked at");
}

fn millis_of(local: DateTime) -> i64 {
    jiff::tz::Offset::UTC
        .to_timestamp(local)
        .expect("in range")
        .as_millisecond()
}

/// The two daily schedules of the time that lies `minutes` after `local`.
fn daily(local: DateTime, minutes: i64, zone: &str) -> (DateTime, [Schedule; 2]) {
    let at = local.checked_add(SignedDuration::from_mins(minutes)).expect("in range");
    let cron = format!("cron {} {} * * *", at.minute(), at.hour());
    let rule = format!("rrule FREQ=DAILY;BYHOUR={};BYMINUTE={}", at.hour(), at.minute());
    (at, [parse(&cron, zone), parse(&rule, zone)])
}

#[test]
fn a_skipped_time_fires_at_the_same_distance_after_the_gap_begins() {
    let mut seen = 0;
    for name in ZONES {
        let zone = TimeZone::get(name).expect("a zone");
        for change in changes(&zone).iter().filter(|change| change.from > change.until) {
            let length = (millis_of(change.from) - millis_of(change.until)) / 60_000;
            for minutes in [0, length / 2, length - 1] {
                let (_, schedules) = daily(change.until, minutes, name);
                for schedule in schedules {
                    let fired = next_after(&schedule, millis(change.at).plus(-HOUR_MS));
                    assert_eq!(
                        fired,
                        Some(millis(change.at).plus(minutes * 60_000)),
                        "{name} at {}",
                        change.until
                    );

                    seen += 1;
                }
            }
        }
    }

    assert!(seen > 1_000, "{seen} skipped times");
}

#[test]
fn a_doubled_time_fires_once_the_first_time() {
    let mut seen = 0;
    for name in ZONES {
        let zone = TimeZone::get(name).expect("a zone");
        for change in changes(&zone).iter().filter(|change| change.from < change.until) {
            let length = (millis_of(change.until) - millis_of(change.from)) / 60_000;
            for minutes in [0, length / 2, length - 1] {
                let (_, schedules) = daily(change.from, minutes, name);
                let first = millis(change.at).plus((minutes - length) * 60_000);
                for schedule in schedules {
                    assert_eq!(
                        next_after(&schedule, first.plus(-HOUR_MS)),
                        Some(first),
                        "{name} at {}",
                        change.from
                    );

                    let next = next_after(&schedule, first).expect("it goes on");
                    assert!(next.since(first) > 20 * HOUR_MS, "{name}: twice at {}", change.from);

                    seen += 1;
                }
            }
        }
    }

    assert!(seen > 1_000, "{seen} doubled times");
}

fn schedules() -> impl Strategy<Value = (String, &'static str)> {
    let numbers = (0_u32..60, 0_u32..24, 1_u32..32, 1_u32..13, 1_u32..7, 1_u32..5);
    let text = (0_usize..14, numbers).prop_map(|(kind, (minute, hour, day, month, weekday, interval))| match kind {
        0 => format!("every {}m", minute + 1),
        1 => format!("cron {minute} * * * *"),
        2 => format!("cron */5 {hour} * * *"),
        3 => format!("cron {minute} {hour} * * {weekday}"),
        4 => format!("cron 0,30 1,2,3 {day} * *"),
        5 => format!("cron 0 {hour} L * {weekday}"),
        6 => format!("cron {minute} */{interval} 1W {month} *"),
        7 => format!("rrule FREQ=HOURLY;INTERVAL={interval}"),
        8 => format!("rrule FREQ=MINUTELY;INTERVAL={};BYHOUR={hour}", minute + 1),
        9 => format!("rrule FREQ=DAILY;INTERVAL={interval};BYHOUR=1,2,{hour};BYMINUTE=0,{minute}"),
        10 => format!("rrule FREQ=WEEKLY;INTERVAL={interval};BYDAY=SU,MO;BYHOUR=2;BYMINUTE={minute}"),
        11 => format!("rrule FREQ=MONTHLY;BYDAY=-1SU,{interval}SA;BYHOUR={hour}"),
        12 => format!("rrule FREQ=YEARLY;BYMONTH={month};BYMONTHDAY=-1;BYHOUR={hour}"),
        _ => format!("rrule FREQ=HOURLY;BYDAY=SU;BYMINUTE={minute}"),
    });

    (text, proptest::sample::select(&ZONES[..]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn instants_are_strictly_increasing_and_none_is_passed_over(
        (text, zone) in schedules(), after in FIRST_YEAR..LAST_YEAR, between in 0.0_f64..1.0
    ) {
        let schedule = parse(&text, zone);
        let mut last = UnixMillis(after);
        for _ in 0..5 {
            let Some(next) = next_after(&schedule, last) else { break };
            prop_assert!(next > last, "{text} in {zone}: {next} after {last}");
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "any instant between will do")]
            let inside = last.plus((next.since(last) as f64 * between) as i64).min(next.plus(-1));
            prop_assert_eq!(next_after(&schedule, inside), Some(next), "{} in {} after {}", text, zone, inside);
            last = next;
        }
    }

    #[test]
    fn no_text_makes_the_reader_fail(text in "\\PC{0,60}", kind in 0_usize..4) {
        let kind = ["every", "cron", "rrule", "at"][kind];
        let _ = Schedule::parse(&format!("{kind} {text}"), "Europe/Berlin");
    }

    #[test]
    fn no_expression_makes_the_expander_fail(text in "[0-9*/,LW#? -]{5,30}", after in FIRST_YEAR..LAST_YEAR) {
        if let Ok(schedule) = Schedule::parse(&format!("cron {text}"), "Europe/Berlin") {
            let _ = next_after(&schedule, UnixMillis(after));
        }
    }
}
