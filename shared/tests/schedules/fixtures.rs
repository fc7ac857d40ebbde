//! Reading `fixtures/schedules/*.jsonl` where they are at hand, and the times in them.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::testing::fixture_text;

/// The rows of `name`; none where the fixtures are absent.
pub(crate) fn rows(name: &str) -> Option<Vec<Value>> {
    let text = fixture_text(&format!("fixtures/schedules/{name}"))?;
    let row = |line: &str| serde_json::from_str(line).expect("a row is JSON");
    Some(text.lines().map(row).collect())
}

/// The string `key` of `row`.
pub(crate) fn text<'r>(row: &'r Value, key: &str) -> Option<&'r str> {
    row.get(key).and_then(Value::as_str)
}

/// A local time in `zone`, or one with its offset, as the rows write them; a bare time is one of a Monday.
pub(crate) fn instant(text: &str, zone: &TimeZone) -> UnixMillis {
    UnixMillis(parse(text.trim(), zone).unwrap_or_else(|| panic!("{text}: no time")))
}

fn parse(text: &str, zone: &TimeZone) -> Option<i64> {
    if let Ok(at) = text.replace(' ', "").parse::<Timestamp>() {
        return Some(at.as_millisecond());
    }

    for format in ["%Y-%m-%d %H:%M:%S%.f %:z", "%Y-%m-%d %H:%M %:z", "%Y-%m-%dT%H:%M:%S%z"] {
        if let Ok(at) = Timestamp::strptime(format, text) {
            return Some(at.as_millisecond());
        }
    }

    let local = [
        "%Y-%m-%d %H:%M:%S",
        "%Y-%m-%d %H:%M",
        "%a %b %d %H:%M %Y",
        "%Y%m%dT%H%M%S",
        "%Y%m%dT%H%M%SZ",
    ]
    .iter()
    .find_map(|format| DateTime::strptime(format, text).ok())
    .or_else(|| text.parse().ok())
    .or_else(|| DateTime::strptime("%Y%m%d %H", format!("{text} 00")).ok())
    .or_else(|| format!("2017-01-02T{text}").parse().ok())?;

    zone.to_timestamp(local).ok().map(Timestamp::as_millisecond)
}

/// `at` as the wall clock in `zone` shows it, with the offset.
pub(crate) fn shown(at: Option<UnixMillis>, zone: &TimeZone) -> String {
    let shown = |at: UnixMillis| {
        let at = Timestamp::from_millisecond(at.0)
            .expect("in range")
            .to_zoned(zone.clone());
        at.strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
    };
    at.map_or_else(|| "never".to_owned(), shown)
}
