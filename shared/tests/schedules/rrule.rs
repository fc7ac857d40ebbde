//! `rrule.jsonl`: rows with the verdict `hard`, on which two independent libraries agree.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::schedule::{Schedule, next_instants, zone_named};

use crate::fixtures::{rows, text};

#[test]
fn hard_rows_are_computed() {
    let Some(rows) = rows("rrule.jsonl") else { return };
    let (mut computed, mut not_applicable, mut wrong) = (0, 0, Vec::new());
    for row in &rows {
        if text(row, "verdict") == Some("hard") {
            computed += 1;
            check(row, &mut wrong);
        } else {
            not_applicable += 1;
        }
    }

    println!("rrule: {computed} computed, {not_applicable} not applicable");
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

fn check(row: &Value, wrong: &mut Vec<String>) {
    let rule = match text(row, "ical") {
        Some(ical) => ical.to_owned(),
        None => format!(
            "DTSTART:{} RRULE:{}",
            text(row, "dtstart").expect("a start"),
            text(row, "rrule").expect("a rule")
        ),
    };

    let zone_name = rule.split_once("TZID=").and_then(|(_, rest)| rest.split_once(':'));
    let zone_name = zone_name.map_or("UTC", |(zone, _)| zone);
    let zone = zone_named(zone_name).expect("a zone");

    let expected: Vec<String> = row["expect"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|at| plain(at.as_str().expect("a time")))
        .collect();

    let found = match Schedule::parse(&format!("rrule {rule}"), zone_name) {
        Ok(schedule) => local(
            &next_instants(&schedule, UnixMillis(-1_000_000_000_000), expected.len() + 1),
            &zone,
        ),
        Err(error) => vec![error.to_string()],
    };

    let is_endless = !rule.contains("COUNT") && !rule.contains("UNTIL");
    let ends = is_endless || found.len() == expected.len();
    if !ends || found.iter().take(expected.len()).ne(expected.iter()) {
        wrong.push(format!("{}: {rule}:\n  {found:?}\n  {expected:?}", row["id"]));
    }
}

/// The wall clock's time without punctuation and offset: `19970902T090000`.
fn plain(text: &str) -> String {
    let at = text.get(..19).filter(|_| text.contains('-')).unwrap_or(text);
    let digits: String = at.chars().filter(char::is_ascii_alphanumeric).collect();
    let digits = digits.trim_end_matches('Z');
    if digits.contains('T') {
        digits.to_owned()
    } else {
        format!("{digits}T000000")
    }
}

fn local(instants: &[UnixMillis], zone: &TimeZone) -> Vec<String> {
    let shown = |at: &UnixMillis| {
        let at = zone.to_datetime(Timestamp::from_millisecond(at.0).expect("in range"));
        at.strftime("%Y%m%dT%H%M%S").to_string()
    };
    instants.iter().map(shown).collect()
}
