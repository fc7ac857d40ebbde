//! Plans the times at which an intent fires, from its schedule. *Pure*, except that a zone's data is looked up by its
//! name.
//!
//! Source: `docs/design/schedules.md` §3.3 (Schedule, Limits).

use shared::model::intent::IntentSchedule;
use shared::model::intent::book::DAY_MS;
use shared::model::time::UnixMillis;
use shared::schedule::{Schedule, next_after};

/// Least time between two occurrences, milliseconds.
pub const MIN_RECURRENCE_MS: i64 = 60_000;
/// Shortest quiet that can be waited for, seconds.
pub const MIN_QUIET_SECONDS: u64 = 1;
/// Longest time that an intent is planned ahead, seconds: ten years.
pub const MAX_AHEAD_SECONDS: u64 = 10 * 366 * 24 * 3_600;
/// Occurrences that are checked for the rate of a recurring intent.
const LOOKED_AT: usize = 1_500;

/// Times at which an intent fires, and its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntentPlan {
    /// First time of its timer: the nominal time, the first check of the condition, or the deadline.
    pub rings: UnixMillis,
    /// Time at which it fires; absent if it waits for a condition.
    pub due: Option<UnixMillis>,
    /// Deadline of its condition, if it has one.
    pub deadline: Option<UnixMillis>,
    /// Firings on the busiest of its first days.
    pub per_day: u32,
}

/// Returns the plan of `schedule` at `now`.
///
/// # Errors
/// Returns the fault in words, for the agent.
pub fn plan_schedule(schedule: &IntentSchedule, now: UnixMillis) -> Result<IntentPlan, String> {
    let once = |at: UnixMillis| IntentPlan {
        rings: at,
        due: Some(at),
        deadline: None,
        per_day: 1,
    };

    match schedule {
        IntentSchedule::After { seconds } => Ok(once(now.plus(check_ahead("seconds", *seconds)?))),
        IntentSchedule::At { local, .. } => {
            let due = next_after(&read(schedule)?, now).ok_or_else(|| format!("local: {local} is in the past"))?;
            check_ahead("local", u64::try_from(due.since(now) / 1_000).unwrap_or(0)).map(|_| once(due))
        }
        IntentSchedule::Cron { .. } | IntentSchedule::Rrule { .. } => {
            let rule = read(schedule)?;
            let until = until_of(schedule)?;
            let mut times = occurrences_after(&rule, now, until);
            let first = times.next().ok_or("the schedule has no occurrence in the future")?;
            // The rate decides how much the intent reserves, so its occurrences are counted over a long time.
            let (mut last, mut day, mut on_day, mut per_day) = (first, first.0.div_euclid(DAY_MS), 1_u32, 1_u32);

            for time in times.take(LOOKED_AT) {
                if time.since(last) < MIN_RECURRENCE_MS {
                    return Err("the schedule fires more often than once a minute".to_owned());
                }

                on_day = if time.0.div_euclid(DAY_MS) == day {
                    on_day + 1
                } else {
                    1
                };
                (last, day, per_day) = (time, time.0.div_euclid(DAY_MS), per_day.max(on_day));
            }

            Ok(IntentPlan { per_day, ..once(first) })
        }
        IntentSchedule::UserIdle { .. } | IntentSchedule::ChatEnded { .. } | IntentSchedule::EventMatches { .. } => {
            plan_conditional(schedule, now)
        }
    }
}

fn plan_conditional(schedule: &IntentSchedule, now: UnixMillis) -> Result<IntentPlan, String> {
    // An empty match would fire at once, by any event.
    if let IntentSchedule::EventMatches { matches, .. } = schedule
        && matches.is_empty()
    {
        return Err("match is empty: every event would match".to_owned());
    }

    let deadline = now.plus(check_ahead(
        "deadline_seconds",
        schedule.deadline_seconds().unwrap_or(0),
    )?);
    let rings = match schedule.quiet_seconds() {
        Some(quiet) if quiet < MIN_QUIET_SECONDS => {
            return Err(format!("the idle time must be at least {MIN_QUIET_SECONDS} s"));
        }
        Some(quiet) => now.plus(check_ahead("quiet", quiet)?).min(deadline),
        None => deadline,
    };

    Ok(IntentPlan {
        rings,
        due: None,
        deadline: Some(deadline),
        per_day: 1,
    })
}

/// Returns the first occurrence of `schedule` after `after`, or `None` if it fires only once or has ended.
#[must_use]
pub fn next(schedule: &IntentSchedule, after: UnixMillis) -> Option<UnixMillis> {
    if !schedule.recurs() {
        return None;
    }
    let until = until_of(schedule).ok()?;
    occurrences_after(&read(schedule).ok()?, after, until).next()
}

fn occurrences_after(
    rule: &Schedule,
    after: UnixMillis,
    until: Option<UnixMillis>,
) -> impl Iterator<Item = UnixMillis> {
    std::iter::successors(next_after(rule, after), |last| next_after(rule, *last))
        .take_while(move |time| until.is_none_or(|until| *time <= until))
}

fn check_ahead(what: &str, seconds: u64) -> Result<i64, String> {
    if seconds == 0 || seconds > MAX_AHEAD_SECONDS {
        return Err(format!("{what}: expected 1 to {MAX_AHEAD_SECONDS} seconds"));
    }
    i64::try_from(seconds * 1_000).map_err(|error| error.to_string())
}

/// Converts a schedule with civil times to a [`Schedule`].
fn read(schedule: &IntentSchedule) -> Result<Schedule, String> {
    let parsed = match schedule {
        IntentSchedule::At { local, zone } => {
            // An offset would contradict the zone.
            if local.ends_with('Z') || local.contains('+') {
                return Err("local: expected a local time without an offset".to_owned());
            }
            Schedule::parse(&format!("at {local}"), zone)
        }
        IntentSchedule::Cron { expression, zone, .. } => Schedule::parse(&format!("cron {expression}"), zone),
        IntentSchedule::Rrule { rule, start, zone } => {
            // A rule without an end would hold its reservation for ever.
            let upper = rule.to_ascii_uppercase();
            if !upper.contains("COUNT=") && !upper.contains("UNTIL=") {
                return Err("rule: it has no end; add COUNT or UNTIL".to_owned());
            }
            let start: String = start.chars().filter(|c| !matches!(c, '-' | ':')).collect();
            let start = if start.len() == 13 { format!("{start}00") } else { start };

            Schedule::parse(&format!("rrule DTSTART;TZID={zone}:{start} RRULE:{rule}"), zone)
        }
        IntentSchedule::After { .. }
        | IntentSchedule::UserIdle { .. }
        | IntentSchedule::ChatEnded { .. }
        | IntentSchedule::EventMatches { .. } => return Err("the schedule has no civil time".to_owned()),
    };

    parsed.map_err(|error| error.to_string())
}

fn until_of(schedule: &IntentSchedule) -> Result<Option<UnixMillis>, String> {
    let IntentSchedule::Cron { until, zone, .. } = schedule else {
        return Ok(None);
    };
    let at = Schedule::parse(&format!("at {until}"), zone).map_err(|error| format!("until: {error}"))?;
    next_after(&at, UnixMillis(0))
        .map(Some)
        .ok_or_else(|| "until: not a time".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// 2026-11-22T00:00:00Z.
    const NOW: UnixMillis = UnixMillis(1_795_305_600_000);

    fn check(schedule: Value) -> Result<IntentPlan, String> {
        plan_schedule(&serde_json::from_value(schedule).expect("a schedule"), NOW)
    }

    fn hours(schedule: Value) -> f64 {
        let due = check(schedule).expect("a plan").due.expect("a time");
        due.since(NOW) as f64 / 3_600_000.0
    }

    #[test]
    fn times_are_local_and_lie_ahead() {
        assert_eq!(hours(json!({ "type": "after", "seconds": 7_200 })), 2.0);
        assert_eq!(
            hours(json!({ "type": "at", "local": "2026-11-22T08:00", "zone": "Europe/Berlin" })),
            7.0
        );
        assert_eq!(
            hours(json!({ "type": "cron", "expression": "0 9 * * *", "zone": "UTC", "until": "2026-12-01T00:00" })),
            9.0
        );
        assert_eq!(
            hours(json!({ "type": "rrule", "rule": "FREQ=DAILY;COUNT=3", "start": "2026-11-22T10:00", "zone": "UTC" })),
            10.0
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_words() {
        let cron = |expression: &str| json!({ "type": "cron", "expression": expression, "zone": "UTC", "until": "2026-12-01T00:00" });
        for (schedule, words) in [
            (json!({ "type": "after", "seconds": 0 }), "seconds"),
            (
                json!({ "type": "at", "local": "2020-01-01T00:00", "zone": "UTC" }),
                "past",
            ),
            (
                json!({ "type": "at", "local": "2026-12-01T00:00Z", "zone": "UTC" }),
                "offset",
            ),
            (
                json!({ "type": "at", "local": "2026-12-01T00:00", "zone": "Nowhere/City" }),
                "Nowhere",
            ),
            (json!({ "type": "at", "local": "tomorrow", "zone": "UTC" }), "tomorrow"),
            (cron("*/20 * * * * *"), "once a minute"),
            (cron("0 9 30 2 *"), ""),
            (
                json!({ "type": "rrule", "rule": "FREQ=DAILY", "start": "2026-11-22T10:00", "zone": "UTC" }),
                "no end",
            ),
            (json!({ "type": "event_matches", "match": {} }), "match"),
            (json!({ "type": "event_matches", "match": { "contains": "" } }), "match"),
            (json!({ "type": "user_idle", "for_seconds": 0 }), "idle time"),
        ] {
            let error = check(schedule.clone()).expect_err("refused");
            assert!(error.contains(words), "{schedule}: {error}");
        }
    }

    #[test]
    fn recurrences_know_their_busiest_day_and_end() {
        let schedule =
            json!({ "type": "cron", "expression": "0 */6 * * *", "zone": "UTC", "until": "2026-11-23T07:00" });
        assert_eq!(check(schedule.clone()).expect("a plan").per_day, 3);
        let schedule: IntentSchedule = serde_json::from_value(schedule).expect("a schedule");
        let times: Vec<i64> = std::iter::successors(next(&schedule, NOW), |last| next(&schedule, *last))
            .map(|time| time.since(NOW) / 3_600_000)
            .collect();
        assert_eq!(times, [6, 12, 18, 24, 30]);
    }

    #[test]
    fn conditions_ring_at_their_first_look_or_deadline() {
        let idle = check(json!({ "type": "user_idle", "for_seconds": 60, "deadline_seconds": 30 })).expect("a plan");
        assert_eq!(
            (idle.rings, idle.due),
            (NOW.plus(30_000), None),
            "the deadline is earlier"
        );
        let event = check(json!({ "type": "event_matches", "match": { "channel": "email" } })).expect("a plan");
        assert_eq!(Some(event.rings), event.deadline);
    }
}
