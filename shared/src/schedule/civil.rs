//! Times of the wall clock → instants: the rules for the days on which clocks change. *Pure.*
//!
//! A time that the clock skips is taken at the same distance after the gap begins (02:30 becomes 03:30); one that it
//! shows twice is taken once, the first time. What follows an earlier instant is strictly later. Source:
//! `docs/design/schedules.md` §2.5.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Longest gap that any zone ever made, with room: Samoa left out one day in 2011.
const LONGEST_GAP: SignedDuration = SignedDuration::from_hours(26);

/// The wall clock's time from which on a time may lie after `after`: what a gap shortly before has pushed past it, too.
pub(super) fn search_start(after: Timestamp, zone: &TimeZone) -> DateTime {
    let second = SignedDuration::from_secs(1);
    // A change at `after` itself is the last one: what it skipped fires from now on, the gap's beginning aside.
    let through = after.checked_add(second).unwrap_or(after);
    let changes = zone.preceding(through).map(|change| change.timestamp());

    changes
        .take_while(|change| after.duration_since(*change) <= LONGEST_GAP)
        .map(|change| zone.to_datetime(change.checked_sub(second).unwrap_or(change)))
        .fold(zone.to_datetime(after), DateTime::min)
}

/// The first instant after `after` among those of `times`, which come in the order of the wall clock.
pub(super) fn first_after(
    times: impl Iterator<Item = DateTime>,
    after: Timestamp,
    zone: &TimeZone,
) -> Option<Timestamp> {
    let mut best: Option<Timestamp> = None;
    for time in times {
        // A skipped time is pushed past times that follow it on the wall clock: the earliest instant counts.
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
