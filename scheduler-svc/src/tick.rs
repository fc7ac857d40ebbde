//! The minute tick: which ticks are due, and their events. *Pure.*
//!
//! Every replica publishes every tick; the message id lets only one be stored. So no replica is elected: a replica
//! needs only the last minute that it knows of, and the time. Source: `docs/design/schedules.md` §1; seed 003 §4.

use serde_json::Value;
use shared::model::event::{Event, EventDirection, EventId, EventSender, ParseEventIdError};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;

/// Length of a minute, in milliseconds.
pub const MINUTE_MS: i64 = 60_000;

/// Maximum number of ticks that are published after an outage, those of the last minutes, including the current one.
pub const MAX_CATCH_UP_MINUTES: i64 = 5;

/// Channel of every timer event.
pub const TIMER_CHANNEL: &str = "timer";

/// Conversation of the ticks.
pub const TICK_PEER: &str = "tick";

/// A minute, by its number since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EpochMinute(pub i64);

impl EpochMinute {
    /// Returns the minute that contains `at`.
    #[must_use]
    pub const fn containing(at: UnixMillis) -> Self {
        Self(at.0.div_euclid(MINUTE_MS))
    }

    /// Returns the beginning of the minute; saturates.
    #[must_use]
    pub const fn start_time(self) -> UnixMillis {
        UnixMillis(self.0.saturating_mul(MINUTE_MS))
    }

    /// Returns the milliseconds from `now` to the beginning of the next minute: 1 ..= 60,000.
    #[must_use]
    pub const fn until_next(now: UnixMillis) -> i64 {
        MINUTE_MS - now.0.rem_euclid(MINUTE_MS)
    }
}

/// Returns the minutes whose ticks are due at `now`, in order, if `last` is the newest one known to be published:
/// those after it, at most [`MAX_CATCH_UP_MINUTES`]. Without a last one, returns only the current minute. After the
/// clock went back, nothing is due.
#[must_use]
pub fn due_minutes(last: Option<EpochMinute>, now: UnixMillis) -> Vec<EpochMinute> {
    let current = EpochMinute::containing(now).0;
    let earliest = current.saturating_sub(MAX_CATCH_UP_MINUTES - 1);
    let first = last.map_or(current, |last| last.0.saturating_add(1).max(earliest));
    (first..=current).map(EpochMinute).collect()
}

/// Returns the tick of `minute`: `timer:tick:{minute}`, in the dm of [`TICK_PEER`] on channel [`TIMER_CHANNEL`].
///
/// All replicas build the same bytes for the same minute, except for `received_at`.
///
/// # Errors
/// Never fails for an id with a number; the type of the id requires the check.
pub fn tick_event(minute: EpochMinute, received_at: UnixMillis) -> Result<Event, ParseEventIdError> {
    let id = EventId::parse(format!("{TIMER_CHANNEL}:tick:{}", minute.0))?;
    let mut event = Event::new(id, TIMER_CHANNEL, TICK_PEER, minute.start_time());
    event.origin = EventOrigin::System;
    event.received_at = received_at;
    event.direction = EventDirection::Created;
    event.from = EventSender {
        id: TIMER_CHANNEL.to_owned(),
        ..EventSender::default()
    };

    event.metadata.insert("minute".to_owned(), Value::from(minute.0));
    Ok(event)
}

/// Returns the minute that `event` is the tick of, or `None` if it is another event.
#[must_use]
pub fn minute_of(event: &Event) -> Option<EpochMinute> {
    let (channel, rest) = event.id.as_str().split_once(':')?;
    let number = rest.strip_prefix("tick:")?;
    (channel == TIMER_CHANNEL)
        .then(|| number.parse().ok().map(EpochMinute))
        .flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(last: Option<i64>, now_ms: i64, expected: &[i64]) {
        let told: Vec<i64> = due_minutes(last.map(EpochMinute), UnixMillis(now_ms))
            .into_iter()
            .map(|minute| minute.0)
            .collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn minutes_after_the_last_one_are_due() {
        check(None, 600_000, &[10]);
        check(Some(10), 659_999, &[]);
        check(Some(10), 660_000, &[11]);
        check(Some(10), 13 * MINUTE_MS, &[11, 12, 13]);
    }

    #[test]
    fn an_outage_is_caught_up_for_five_minutes() {
        check(Some(10), 100 * MINUTE_MS, &[96, 97, 98, 99, 100]);
    }

    #[test]
    fn a_clock_that_went_back_makes_nothing_due() {
        check(Some(10), 3 * MINUTE_MS, &[]);
    }

    #[test]
    fn a_tick_says_its_minute() {
        let event = tick_event(EpochMinute(28_333_333), UnixMillis(5)).expect("an event");
        assert_eq!(event.id.as_str(), "timer:tick:28333333");
        assert_eq!(event.timestamp, UnixMillis(1_699_999_980_000));
        assert_eq!(event.conversation(), ("timer", "default", "tick"));
        assert_eq!(minute_of(&event), Some(EpochMinute(28_333_333)));
    }

    #[test]
    fn other_events_are_no_ticks() {
        for id in ["timer:heartbeat:5", "webhook:tick:5", "timer:tick:x"] {
            let event = Event::new(EventId::parse(id).expect("an id"), "timer", "tick", UnixMillis(0));
            assert_eq!(minute_of(&event), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn due_minutes_are_new_contiguous_bounded_and_not_in_the_future(
            last in proptest::option::of(-1_000_000_i64..1_000_000), now in -50_000_000_000_i64..50_000_000_000
        ) {
            let now = UnixMillis(now);
            let minutes = due_minutes(last.map(EpochMinute), now);
            prop_assert!(minutes.len() <= 5);
            prop_assert!(minutes.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1));
            prop_assert!(minutes.iter().all(|minute| *minute <= EpochMinute::containing(now)));
            if let (Some(last), Some(first)) = (last, minutes.first()) {
                prop_assert!(first.0 > last);
            }
            if let Some(newest) = minutes.last() {
                prop_assert_eq!(*newest, EpochMinute::containing(now));
                prop_assert!(due_minutes(Some(*newest), now).is_empty());
            }
        }

        #[test]
        fn the_next_minute_begins_after_the_wait(now in -50_000_000_000_i64..50_000_000_000) {
            let now = UnixMillis(now);
            let next = now.plus(EpochMinute::until_next(now));
            prop_assert_eq!(next, EpochMinute(EpochMinute::containing(now).0 + 1).start_time());
        }
    }
}
