use super::*;

const NOON: &str = "2026-11-22T12:00:00Z";

fn at(text: &str) -> UnixMillis {
    to_millis(text.parse().expect("an instant"))
}

fn check(text: &str, zone: &str, expected: &[&str]) {
    let schedule = Schedule::parse(text, zone).expect("a schedule");
    let found = next_instants(&schedule, at(NOON), expected.len().max(1));
    let expected: Vec<UnixMillis> = expected.iter().map(|text| at(text)).collect();
    assert_eq!(found, expected, "{text} in {zone}");
}

#[test]
fn every_is_a_grid_and_not_from_the_process_start() {
    check("every 45m", "UTC", &["2026-11-22T12:45:00Z", "2026-11-22T13:30:00Z"]);
    check(
        "every 1d from 2026-01-01T09:00",
        "Europe/Berlin",
        &["2026-11-23T08:00:00Z", "2026-11-24T08:00:00Z"],
    );
    check("every 2h from 2027-01-01T01:00", "UTC", &["2026-11-22T13:00:00Z"]);
}

#[test]
fn times_are_those_of_the_wall_clock_in_the_zone() {
    check("cron 0 9 * * MON-FRI", "America/Chicago", &["2026-11-23T15:00:00Z"]);
    check(
        "cron TZ=Asia/Tokyo 0 9 * * *",
        "America/Chicago",
        &["2026-11-23T00:00:00Z"],
    );
    check("rrule FREQ=DAILY;BYHOUR=9", "Europe/Berlin", &["2026-11-23T08:00:00Z"]);
    check(
        "rrule DTSTART;TZID=America/New_York:20260101T090000 RRULE:FREQ=WEEKLY",
        "UTC",
        &["2026-11-26T14:00:00Z"],
    );

    check("at 2026-11-22T18:30", "Europe/Berlin", &["2026-11-22T17:30:00Z"]);
    check(
        "at 2026-11-22T18:30:00+03:00",
        "Europe/Berlin",
        &["2026-11-22T15:30:00Z"],
    );
}

#[test]
fn what_is_over_never_fires() {
    for text in [
        "at 2026-11-22T12:00:00Z",
        "rrule DTSTART:20260101T000000Z RRULE:FREQ=DAILY;COUNT=3",
        "rrule FREQ=HOURLY;UNTIL=20261122T120000Z",
    ] {
        check(text, "UTC", &[]);
    }
}

#[test]
fn a_bare_until_means_the_whole_day() {
    check(
        "rrule FREQ=DAILY;BYHOUR=18;UNTIL=20261122",
        "Europe/Berlin",
        &["2026-11-22T17:00:00Z"],
    );
}

#[test]
fn both_day_fields_mean_either_and_with_a_plus_both() {
    check(
        "cron 0 0 25 * FRI",
        "UTC",
        &["2026-11-25T00:00:00Z", "2026-11-27T00:00:00Z"],
    );
    check("cron 0 0 25 * +FRI", "UTC", &["2026-12-25T00:00:00Z"]);
}

#[test]
fn what_is_wrong_is_named() {
    for (text, said) in [
        ("cron 0 25 * * *", "cron: hours `25`: expected 0 to 23"),
        ("cron H 1 * * *", "cron: minutes `H`: expected a number or a name"),
        ("rrule FREQ=DAILY;BYMONHT=2", "rrule: BYMONHT `2`: unknown part"),
        (
            "rrule FREQ=DAILY;COUNT=2",
            "rrule: COUNT `FREQ=DAILY;COUNT=2`: needs a DTSTART to count from",
        ),
        ("at noon", "at: `noon`: expected a local time"),
        ("every month", "every: `month`: expected a duration"),
        ("soon", "`soon`: expected `every …`"),
    ] {
        let error = Schedule::parse(text, "UTC").expect_err("it is wrong").to_string();
        assert!(error.starts_with(said), "{error}");
    }
}
