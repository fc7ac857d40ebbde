//! The schedules that the oracle is asked about, each as a text and as what it means.

use std::sync::OnceLock;

/// 2001-01-01 00:00, where a rule without `DTSTART` begins, in minutes of the wall clock since 1970.
const START: i64 = 16_305_120;
const DAY: i64 = 24 * 60;

/// A minute of the wall clock.
pub(crate) struct Local {
    /// Days since 1970-01-01.
    number: i64,
    /// 0 is Sunday.
    weekday: i64,
    month: i64,
    day: i64,
    last_day: i64,
    hour: i64,
    minute: i64,
}

impl Local {
    /// The minute `minutes` after 1970-01-01 00:00.
    pub(crate) fn of(minutes: i64) -> Self {
        let (number, in_day) = (minutes.div_euclid(DAY), minutes.rem_euclid(DAY));
        let (year, month, day) = civil(number);
        let is_leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;

        let last_day = match month {
            4 | 6 | 9 | 11 => 30,
            2 if is_leap => 29,
            2 => 28,
            _ => 31,
        };

        Self {
            number,
            weekday: (number + 4).rem_euclid(7),
            month,
            day,
            last_day,
            hour: in_day / 60,
            minute: in_day % 60,
        }
    }
}

/// Year, month and day of day `number` since 1970-01-01, by counting from a year to the next in the 400-year cycle.
fn civil(number: i64) -> (i64, i64, i64) {
    let days = number + 719_468;
    let era = days.div_euclid(146_097);
    let in_era = days.rem_euclid(146_097);
    let year_of_era = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month_from_march + 2) / 5 + 1;

    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };

    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// What the times of a rule are.
#[derive(Clone, Copy)]
pub(crate) enum Means {
    /// Times of the wall clock: a doubled one once, a skipped one as far after the gap begins.
    WallClock,
    /// Every real minute in which the clock shows a fitting time.
    ShownMinute,
    /// Every so many real minutes from the start, where the clock shows a fitting time.
    Elapsed {
        /// So many.
        minutes: i64,
    },
}

type Fits = fn(&Local) -> bool;

/// A schedule and its meaning.
pub(crate) struct Rule {
    pub(crate) text: String,
    pub(crate) means: Means,
    /// Where it begins, in minutes of the wall clock since 1970.
    pub(crate) start: i64,
    minutes: u64,
    hours: u32,
    days: Fits,
}

impl Rule {
    pub(crate) fn matches(&self, local: &Local) -> bool {
        self.minutes >> local.minute & 1 == 1 && self.hours >> local.hour & 1 == 1 && (self.days)(local)
    }
}

const ALL_HOURS: u32 = (1 << 24) - 1;
const ALL_MINUTES: u64 = (1 << 60) - 1;
const EVERY_DAY: Fits = |_| true;

fn bits(values: impl IntoIterator<Item = u32>) -> u64 {
    values.into_iter().fold(0, |bits, value| bits | 1 << value)
}

fn hours(values: impl IntoIterator<Item = u32>) -> u32 {
    u32::try_from(bits(values)).expect("24 hours")
}

/// All of them.
pub(crate) fn rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| [crons(), recurrences(), elapsed()].into_iter().flatten().collect())
}

/// Cron expressions: lists, ranges, steps and single values for minutes and hours, with all kinds of days.
fn crons() -> Vec<Rule> {
    let minutes: [(&str, u64); 7] = [
        ("0", bits([0])),
        ("0,30", bits([0, 30])),
        ("5,35", bits([5, 35])),
        ("*/20", bits([0, 20, 40])),
        ("15-45/15", bits([15, 30, 45])),
        ("59", bits([59])),
        ("30", bits([30])),
    ];

    let named: [(&str, u32); 7] = [
        ("2", hours([2])),
        ("0", hours([0])),
        ("0-4", hours(0..=4)),
        ("*/2", hours((0..24).step_by(2))),
        ("1,2,3,23", hours([1, 2, 3, 23])),
        ("1-9", hours(1..=9)),
        ("22-1", hours([22, 23, 0, 1])),
    ];

    let days: [(&str, Fits); 6] = [
        ("* * *", EVERY_DAY),
        ("* * SUN", |local| local.weekday == 0),
        ("* * 5,6,0", |local| [5, 6, 0].contains(&local.weekday)),
        ("L * *", |local| local.day == local.last_day),
        ("*/2 * *", |local| local.day % 2 == 1),
        ("1-14 3,4,9-11 *", |local| {
            local.day <= 14 && [3, 4, 9, 10, 11].contains(&local.month)
        }),
    ];

    let mut rules = Vec::new();
    for (at, (minute_text, minutes)) in minutes.into_iter().enumerate() {
        for (number, (hour_text, hours)) in named.into_iter().enumerate() {
            // Each pair of minutes and hours with one kind of days, so that every kind meets every list.
            let (day_text, fits) = days[if number == 0 { 0 } else { (at + number) % days.len() }];
            rules.push(Rule {
                text: format!("cron {minute_text} {hour_text} {day_text}"),
                means: Means::WallClock,
                start: START,
                minutes,
                hours,
                days: fits,
            });
        }

        let (day_text, fits) = days[at % days.len()];
        rules.push(Rule {
            text: format!("cron {minute_text} * {day_text}"),
            means: Means::ShownMinute,
            start: START,
            minutes,
            hours: ALL_HOURS,
            days: fits,
        });
    }

    rules
}

/// Rules of RFC 5545 that mean times of the wall clock.
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn recurrences() -> Vec<Rule> {
    let night = hours([0, 1, 2, 3, 4, 23]);
    let wall = |text: &str, minutes: u64, hours: u32, start: i64, days: Fits| Rule {
        text: format!("rrule {text}"),
        means: Means::WallClock,
        start,
        minutes,
        hours,
        days,
    };

    let halves = "BYHOUR=0,1,2,3,4,23;BYMINUTE=0,30";
    // 2019-06-01 02:30.
    let june = 18_048 * DAY + 150;
    vec![
        wall(
            "FREQ=DAILY;BYHOUR=2;BYMINUTE=0,30",
            bits([0, 30]),
            hours([2]),
            START,
            EVERY_DAY,
        ),
        wall(&format!("FREQ=DAILY;{halves}"), bits([0, 30]), night, START, EVERY_DAY),
        wall(
            "FREQ=DAILY;BYHOUR=0,1,2,3;BYMINUTE=0,20,40",
            bits([0, 20, 40]),
            hours(0..4),
            START,
            EVERY_DAY,
        ),
        wall(
            &format!("FREQ=DAILY;INTERVAL=2;{halves}"),
            bits([0, 30]),
            night,
            START,
            |local| (local.number - START / DAY) % 2 == 0,
        ),
        wall(
            &format!("FREQ=WEEKLY;BYDAY=SA,SU;{halves}"),
            bits([0, 30]),
            night,
            START,
            |local| [6, 0].contains(&local.weekday),
        ),
        wall(
            &format!("FREQ=MONTHLY;BYDAY=-1SU;{halves}"),
            bits([0, 30]),
            night,
            START,
            |local| local.weekday == 0 && local.day + 7 > local.last_day,
        ),
        wall(
            &format!("FREQ=MONTHLY;BYMONTHDAY=1,-1;{halves}"),
            bits([0, 30]),
            night,
            START,
            |local| local.day == 1 || local.day == local.last_day,
        ),
        wall(
            &format!("FREQ=YEARLY;BYMONTH=3,4,9,10,11;BYDAY=SU;{halves}"),
            bits([0, 30]),
            night,
            START,
            |local| local.weekday == 0 && [3, 4, 9, 10, 11].contains(&local.month),
        ),
        wall(
            "DTSTART:20190601T023000 RRULE:FREQ=DAILY;INTERVAL=3",
            bits([30]),
            hours([2]),
            june,
            |local| (local.number - 18_048) % 3 == 0,
        ),
        wall(
            "DTSTART:20190601T023000 RRULE:FREQ=DAILY",
            bits([30]),
            hours([2]),
            june,
            EVERY_DAY,
        ),
    ]
}

/// Rules that walk elapsed time.
fn elapsed() -> Vec<Rule> {
    let every = |text: &str, step: i64, hours: u32| Rule {
        text: format!("rrule {text}"),
        means: Means::Elapsed { minutes: step },
        start: START,
        minutes: ALL_MINUTES,
        hours,
        days: EVERY_DAY,
    };

    vec![
        every("FREQ=HOURLY", 60, ALL_HOURS),
        every("FREQ=HOURLY;INTERVAL=7", 420, ALL_HOURS),
        every("FREQ=HOURLY;BYHOUR=1,2,3", 60, hours([1, 2, 3])),
        every("FREQ=MINUTELY;INTERVAL=20", 20, ALL_HOURS),
        every("FREQ=MINUTELY;INTERVAL=15;BYHOUR=0,1,2,3", 15, hours(0..4)),
    ]
}
