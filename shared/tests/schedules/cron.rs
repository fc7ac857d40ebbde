//! `cron.jsonl`: rows of Cronos and robfig/cron.

use jiff::tz::TimeZone;
use serde_json::Value;
use shared::schedule::cron::{CronExpression, DayRule};
use shared::schedule::{Schedule, next_after};

use crate::fixtures::{instant, rows, shown, text};

/// Rows on days when the clock changes, where Cronos does it otherwise: our own instant, by the rule that
/// `docs/schedules-dst.md` gives for it.
const OURS: [(&str, &str); 7] = [
    (
        "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsForward_And_TimeZoneIsEst/0796",
        "2016-03-13 03:30:00 -04:00",
    ),
    (
        "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsForward_And_TimeZoneIsEst/0808",
        "2016-03-13 03:30:00 -04:00",
    ),
    (
        "cron/cronos/GetNextOccurrence_HandleDifficultDSTCases_WhenTheClockJumpsForwardOnFriday/1054",
        "2017-03-31 01:30:00 +03:00",
    ),
    (
        "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsBackward/0886",
        "2016-11-06 02:30:00 -05:00",
    ),
    (
        "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsBackward/0896",
        "2016-11-07 01:00:00 -05:00",
    ),
    (
        "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsBackward/0921",
        "2016-11-07 01:00:00 -05:00",
    ),
    (
        "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsBackwardAndDeltaIsNotHour/0995",
        "2017-04-03 01:30:00 +10:30",
    ),
];

/// A row whose zone cannot be: New York never had an offset of -03:00. In Santiago the instant is the listed one.
const OTHER_ZONE: (&str, &str) = (
    "cron/cronos/GetNextOccurrence_HandleDST_WhenTheClockJumpsBackwardAndFromIsAroundDST/0830",
    "America/Santiago",
);

#[derive(Default)]
struct Counts {
    computed: usize,
    refused: usize,
    ours: usize,
    not_applicable: usize,
    wrong: Vec<String>,
}

#[test]
fn the_listed_instants_are_computed() {
    let Some(rows) = rows("cron.jsonl") else { return };
    let mut counts = Counts::default();
    for row in &rows {
        check(row, &mut counts);
    }

    let Counts {
        computed,
        refused,
        ours,
        not_applicable,
        wrong,
    } = counts;

    println!("cron: {computed} computed, {refused} refused, {ours} by our own rule, {not_applicable} not applicable");
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(ours, OURS.len(), "every exception is used");
}

#[test]
fn the_document_tells_every_case_of_our_own_rule() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schedules-dst.md");
    let document = std::fs::read_to_string(path).expect("the document");
    for (id, ours) in OURS.iter().chain([&OTHER_ZONE]) {
        let row = id.rsplit('/').next().expect("a number");
        let line = document.lines().find(|line| line.starts_with(&format!("| {row} |")));
        let line = line.unwrap_or_else(|| panic!("row {row} is not told"));
        assert!(line.contains(ours), "row {row}: {ours}");
    }
}

fn check(row: &Value, counts: &mut Counts) {
    let (id, expression) = (
        text(row, "id").expect("an id"),
        text(row, "expr").expect("an expression"),
    );

    // Cronos: both day fields must fit. robfig/cron: either.
    let is_cronos = id.contains("/cronos/");
    let days = if is_cronos { DayRule::Both } else { DayRule::Either };

    let has_hash = row.get("jitter_seed").is_some() || text(row, "ext") == Some("H(jitter)");
    if has_hash {
        counts.not_applicable += 1;
        return;
    }

    if row.get("expect_error").is_some() {
        counts.refused += 1;
        if CronExpression::parse_with(expression, days).is_ok() {
            counts.wrong.push(format!("{id}: `{expression}` is read"));
        }
        return;
    }

    if row.get("fires").is_some() {
        counts.computed += 1;
        fires(row, expression, days, &mut counts.wrong);
        return;
    }

    let Some(expected) = row.get("expect") else {
        counts.not_applicable += 1;
        if CronExpression::parse_with(expression, days).is_err() {
            counts.wrong.push(format!("{id}: `{expression}` is refused"));
        }
        return;
    };

    let named = expression.strip_prefix("TZ=").and_then(|rest| rest.split_once(' '));
    let zone_name = named.map_or_else(|| text(row, "tz").unwrap_or("UTC"), |(zone, _)| zone);
    let zone_name = if id == OTHER_ZONE.0 { OTHER_ZONE.1 } else { zone_name };
    let zone = TimeZone::get(zone_name).expect("a zone");

    let schedule = match Schedule::parse_with(&format!("cron {}", expression.trim()), zone_name, days) {
        Ok(schedule) => schedule,
        Err(error) => {
            counts.wrong.push(format!("{id}: {error}"));
            return;
        }
    };

    let is_inclusive = row
        .get("inclusive")
        .and_then(Value::as_bool)
        .unwrap_or_else(|| is_cronos && !text(row, "group").unwrap_or_default().contains("InclusiveIsFalse"));
    let from = instant(text(row, "from").expect("a beginning"), &zone);
    let found = next_after(&schedule, if is_inclusive { from.plus(-1) } else { from });

    let theirs = expected.as_str().map(|expected| instant(expected, &zone));
    if found == theirs {
        counts.computed += 1;
        return;
    }

    let (found, theirs) = (shown(found, &zone), shown(theirs, &zone));
    match OURS.iter().find(|(of, _)| *of == id) {
        Some((_, expected)) if *expected == found => counts.ours += 1,
        Some(_) | None => counts.wrong.push(format!(
            "{id}: `{expression}` from {}: {found}, expected {theirs}",
            text(row, "from").unwrap_or_default()
        )),
    }
}

fn fires(row: &Value, expression: &str, days: DayRule, wrong: &mut Vec<String>) {
    let schedule = Schedule::parse_with(&format!("cron {expression}"), "UTC", days).expect("it is read");
    let at = instant(text(row, "at").expect("an instant"), &TimeZone::UTC);
    let does = next_after(&schedule, at.plus(-1)) == Some(at);
    if Some(does) != row.get("fires").and_then(Value::as_bool) {
        wrong.push(format!(
            "`{expression}` at {}: {does}",
            text(row, "at").unwrap_or_default()
        ));
    }
}
