//! Schedules on the days when clocks change, against an oracle that shares no method with the expander.
//!
//! The oracle walks every UTC minute around a change, asks the zone database for the offset in that minute and nothing
//! else, and takes the rules of `docs/schedules-dst.md` literally. The expander computes with times of the wall clock.
//! The normal run looks at one change of every shape; `NEXUS_CHAOS=long` at every change of every zone, 2020 to 2035.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use shared::model::time::UnixMillis;
use shared::schedule::{Schedule, next_after};

use super::oracle_rules::{Local, Means, Rule, rules};

/// 2020-01-01 and 2036-01-01, in minutes since the epoch.
const FIRST: i64 = 26_297_280;
const LAST: i64 = 34_712_640;
/// Minutes that are walked on either side of a change: longer than any gap.
const AROUND: i64 = 27 * 60;
/// The longest gap that a zone makes, minutes: Samoa left out one day.
const LONGEST_GAP: i64 = 26 * 60;

/// What the wall clock of a zone shows around one change.
struct Window {
    from: i64,
    /// What it shows in each UTC minute, in minutes since 1970-01-01 00:00 of the wall clock.
    shown: Vec<i64>,
    /// Whether it has shown that before.
    again: Vec<bool>,
    /// The skipped time that is as far from the beginning of its gap as this minute.
    skipped: Vec<Option<i64>>,
}

fn offset(zone: &TimeZone, minute: i64) -> i64 {
    let at = Timestamp::from_second(minute * 60).expect("in range");
    let seconds = i64::from(zone.to_offset(at).seconds());
    assert_eq!(seconds % 60, 0, "an offset of whole minutes at {at}");
    seconds / 60
}

impl Window {
    fn around(zone: &TimeZone, change: i64) -> Self {
        let from = change - AROUND;
        let shown: Vec<i64> = (from..change + AROUND)
            .map(|minute| minute + offset(zone, minute))
            .collect();

        let mut seen = BTreeSet::new();
        let again = shown.iter().map(|local| !seen.insert(*local)).collect();

        let mut skipped = vec![None; shown.len()];
        for at in 1..shown.len() {
            // Between two minutes the clock went on by more than one.
            let gap = shown[at] - shown[at - 1] - 1;
            for distance in 0..gap.min(i64::try_from(shown.len() - at).expect("small")) {
                let image = at + usize::try_from(distance).expect("not negative");
                skipped[image] = Some(shown[at - 1] + 1 + distance);
            }
        }

        Self {
            from,
            shown,
            again,
            skipped,
        }
    }

    /// The UTC minutes in which `rule` fires; `begins` is the instant of its start.
    fn fires(&self, rule: &Rule, begins: i64) -> Vec<i64> {
        let minutes = (self.from..).zip(self.shown.iter().zip(&self.again).zip(&self.skipped));
        let fires = |(minute, ((shown, again), skipped)): (i64, ((&i64, &bool), &Option<i64>))| -> bool {
            let shows = rule.matches(&Local::of(*shown));
            match rule.means {
                Means::WallClock => {
                    let pushed = skipped.is_some_and(|time| rule.matches(&Local::of(time)));
                    shows && !again || pushed
                }
                Means::ShownMinute => shows,
                Means::Elapsed { minutes } => (minute - begins).rem_euclid(minutes) == 0 && shows,
            }
        };

        minutes.filter_map(|minute| fires(minute).then_some(minute.0)).collect()
    }
}

/// What was compared, and where the two differ.
#[derive(Default)]
struct Tally {
    changes: u64,
    firings: u64,
    lost: u64,
    invented: u64,
    examples: Vec<String>,
}

impl Tally {
    /// Both ways through the window: from firing to firing, and, where `closely`, from every minute near the change.
    fn compare(&mut self, name: &str, zone: &TimeZone, change: i64, closely: bool) {
        self.changes += 1;
        let window = Window::around(zone, change);

        let end = change + AROUND - LONGEST_GAP / 26;
        for rule in rules() {
            let schedule =
                Schedule::parse(&rule.text, name).unwrap_or_else(|error| panic!("{} in {name}: {error}", rule.text));
            let begins = instant_of(zone, rule.start);
            let fires = window.fires(rule, begins);
            let expected: BTreeSet<i64> = fires.into_iter().filter(|minute| *minute <= end).collect();
            self.firings += expected.len() as u64;

            let found = chain(&schedule, window.from, end);
            self.differ("lost", expected.difference(&found), name, rule);
            self.differ("invented", found.difference(&expected), name, rule);

            if closely {
                self.ask_every_minute(&schedule, &expected, change, name, rule);
            }
        }
    }

    fn differ<'m>(&mut self, what: &str, minutes: impl Iterator<Item = &'m i64>, name: &str, rule: &Rule) {
        for minute in minutes {
            match what {
                "lost" => self.lost += 1,
                _ => self.invented += 1,
            }

            if self.examples.len() < 12 {
                let at = Timestamp::from_second(minute * 60).expect("in range");
                self.examples.push(format!("{what}: `{}` in {name} at {at}", rule.text));
            }
        }
    }

    /// Whoever asks at any minute near the change is told the same: a scheduler may begin there.
    fn ask_every_minute(
        &mut self,
        schedule: &Schedule,
        expected: &BTreeSet<i64>,
        change: i64,
        name: &str,
        rule: &Rule,
    ) {
        for after in change - 130..change + 190 {
            let Some(first) = expected.range(after + 1..).next() else {
                continue;
            };

            let told = next_after(schedule, UnixMillis(after * 60_000));
            if told != Some(UnixMillis(first * 60_000)) {
                self.differ("lost", [*first].iter(), name, rule);
            }
        }
    }

    fn assert_same(&self) {
        println!(
            "{} changes, {} firings: {} lost, {} invented",
            self.changes, self.firings, self.lost, self.invented
        );
        assert_eq!((self.lost, self.invented), (0, 0), "{:#?}", self.examples);
    }
}

/// The minutes in which `schedule` fires from `from` to `end`, each asked for after the one before.
fn chain(schedule: &Schedule, from: i64, end: i64) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    let mut after = UnixMillis(from * 60_000 - 1);
    while let Some(next) = next_after(schedule, after) {
        assert!(next > after && next.0 % 60_000 == 0, "{next} after {after}");
        if next.0 / 60_000 > end {
            break;
        }
        found.insert(next.0 / 60_000);
        after = next;
    }

    found
}

/// The UTC minute in which the clock of `zone` shows `local` for the first time.
fn instant_of(zone: &TimeZone, local: i64) -> i64 {
    let day = 24 * 60;
    let shows = |minute: &i64| minute + offset(zone, *minute) == local;
    // Offsets are whole quarters of an hour since long before any start of a rule here.
    let mut minutes = (local - day..local + day).step_by(15);
    minutes.find(shows).expect("the start of a rule is no skipped time")
}

/// The changes of the wall clock of `zone`: the first minutes of a new offset.
fn changes(zone: &TimeZone) -> Vec<i64> {
    let first = Timestamp::from_second(FIRST * 60).expect("in range");
    let minutes = zone
        .following(first)
        .map(|change| change.timestamp().as_second().div_euclid(60));
    minutes
        .take_while(|minute| *minute < LAST)
        .filter(|minute| offset(zone, *minute) != offset(zone, minute - 1))
        .collect()
}

/// The zones of the database, without those that only say that a zone is unknown.
fn zones() -> Vec<(String, TimeZone)> {
    let names = jiff::tz::db().available().map(|name| name.to_string());
    let mut zones: Vec<(String, TimeZone)> = names
        .filter_map(|name| TimeZone::get(&name).ok().map(|zone| (name, zone)))
        .filter(|(_, zone)| !zone.is_unknown())
        .collect();
    zones.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(zones.len() > 400, "{} zones", zones.len());
    zones
}

#[expect(clippy::disallowed_methods, reason = "the long form is asked for by a variable")]
fn is_long() -> bool {
    std::env::var("NEXUS_CHAOS").is_ok_and(|form| form == "long")
}

#[test]
fn schedules_fire_as_the_oracle_says_around_changing_clocks() {
    let mut tally = Tally::default();
    let mut shapes: BTreeMap<(i64, i64), u32> = BTreeMap::new();
    for (name, zone) in zones() {
        for change in changes(&zone) {
            let before = offset(&zone, change - 1);
            let shape = (offset(&zone, change) - before, (change + before).rem_euclid(24 * 60));
            let seen = shapes.entry(shape).or_default();
            *seen += 1;

            let is_first = *seen == 1;
            if is_first || is_long() {
                tally.compare(&name, &zone, change, is_first);
            }
        }
    }

    println!("{} shapes of changes (minutes of the move, time of day)", shapes.len());
    assert!(shapes.len() > 8, "{shapes:?}");

    tally.assert_same();
}

#[test]
fn no_change_of_a_clock_is_overlooked() {
    // Every hour of 16 years for every zone takes minutes; the normal run takes a few zones.
    let few = [
        "America/New_York",
        "Africa/Casablanca",
        "Australia/Lord_Howe",
        "Asia/Gaza",
    ];

    let step = 60;
    for (name, zone) in zones() {
        if !is_long() && !few.contains(&name.as_str()) {
            continue;
        }

        let mut known = changes(&zone).into_iter().peekable();
        let mut before = offset(&zone, FIRST);
        for minute in (FIRST + step..LAST).step_by(60) {
            let now = offset(&zone, minute);
            let told = known.next_if(|change| *change <= minute).is_some();
            assert_eq!(now != before, told, "{name} before {}", minute * 60);
            before = now;
        }
    }
}
