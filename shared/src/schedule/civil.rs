//! Conversion of wall-clock times to instants, with the rules for clock changes. *Pure.*
//!
//! A skipped time is used at the same distance after the gap begins (02:30 becomes 03:30); a repeated time is used
//! once, at its first occurrence. Every instant is strictly later than the one before. Source:
//! `docs/design/schedules.md` §2.5.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Maximum length of a gap in any zone, with reserve: Samoa skipped one day in 2011.
const LONGEST_GAP: SignedDuration = SignedDuration::from_hours(26);

/// Returns the wall-clock time from which times after `after` must be searched. It includes times that a recent gap
/// moved past `after`.
pub(super) fn search_start(after: Timestamp, zone: &TimeZone) -> DateTime {
    let second = SignedDuration::from_secs(1);
    // A change exactly at `after` counts as past: the times it skipped fire after it, except for the gap's beginning.
    let through = after.checked_add(second).unwrap_or(after);
    let changes = zone.preceding(through).map(|change| change.timestamp());

    changes
        .take_while(|change| after.duration_since(*change) <= LONGEST_GAP)
        .map(|change| zone.to_datetime(change.checked_sub(second).unwrap_or(change)))
        .fold(zone.to_datetime(after), DateTime::min)
}

/// Returns the first instant after `after` among `times`, which must be in wall-clock order.
pub(super) fn first_after(
    times: impl Iterator<Item = DateTime>,
    after: Timestamp,
    zone: &TimeZone,
) -> Option<Timestamp> {
    let mut best: Option<Timestamp> = None;
    for time in times {
        // A skipped time can move past later wall-clock times, so the earliest instant is chosen.
        if best.is_some_and(|best| time > zone.to_datetime(best)) {
            break;
        }
        let at = zone.to_timestamp(time).ok()?;
        if at > after && best.is_none_or(|best| at < best) {
            best = Some(at);
        }
    }

    best
}
