//! An agent's budget book: its pending intents, and the charges of its days. *Pure.* Source:
//! `docs/design/schedules.md` §3.6 (Budget, Limits).
//!
//! A reservation is made at admission and consumed by the firing, so a firing never asks for budget. A booking whose
//! time has passed counts as spent on its day, and is removed with the day.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::time::UnixMillis;

/// Length of a day, in milliseconds; days are those of UTC.
pub const DAY_MS: i64 = 86_400_000;

/// The reservation of one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentBooking {
    /// Time of the firing; absent = any day (conditions, recurrences), so it counts on each.
    #[serde(default, rename = "d", skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// Number of firings on that day, or on each.
    #[serde(rename = "f")]
    pub firings: u32,
    /// Number of tokens on that day, or on each.
    #[serde(rename = "t")]
    pub tokens: u64,
}

/// The charge of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RateCharge {
    /// Number of firings charged.
    #[serde(rename = "f")]
    pub firings: u64,
    /// Number of tokens charged.
    #[serde(rename = "t")]
    pub tokens: u64,
}

/// A value of KV `intents` under `a.{agent}`: the budget book of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AgentBook {
    /// Reservations by intent id.
    pub bookings: BTreeMap<Ulid, IntentBooking>,
    /// Charges of fired intents whose booking is removed, by the number of the day since 1970.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spent: BTreeMap<i64, RateCharge>,
    /// Id of the last writer, so that two writers never write the same bytes.
    #[serde(default)]
    pub writer: String,
}

/// Returns the number of the day of `at`, counted from 1970.
#[must_use]
pub const fn day_of(at: UnixMillis) -> i64 {
    at.0.div_euclid(DAY_MS)
}

impl AgentBook {
    /// Removes all entries of days before `now`'s.
    pub fn forget_past(&mut self, now: UnixMillis) {
        let today = day_of(now);
        self.bookings
            .retain(|_, booking| booking.due.is_none_or(|due| day_of(due) >= today));
        self.spent.retain(|day, _| *day >= today);
    }

    /// Returns the number of intents that are pending at `now`.
    #[must_use]
    pub fn pending_count(&self, now: UnixMillis) -> usize {
        let waits = |booking: &&IntentBooking| booking.due.is_none_or(|due| due > now);
        self.bookings.values().filter(waits).count()
    }

    /// Returns the charge of `day`, including reservations.
    #[must_use]
    pub fn charge_of(&self, day: i64) -> RateCharge {
        let mut charge = self.spent.get(&day).copied().unwrap_or_default();
        for booking in self.bookings.values() {
            if booking.due.is_none_or(|due| day_of(due) == day) {
                charge.firings += u64::from(booking.firings);
                charge.tokens += booking.tokens;
            }
        }
        charge
    }

    /// Returns the highest charge of any day from `today`, each figure by itself. An intent that may fire on any day must
    /// fit beside it.
    #[must_use]
    pub fn heaviest_charge(&self, today: i64) -> RateCharge {
        let days = self.bookings.values().filter_map(|booking| booking.due.map(day_of));
        let days = days.chain(self.spent.keys().copied()).chain([today]);
        let days: std::collections::BTreeSet<i64> = days.filter(|day| *day >= today).collect();

        days.into_iter().fold(RateCharge::default(), |most, day| {
            let charge = self.charge_of(day);
            RateCharge {
                firings: most.firings.max(charge.firings),
                tokens: most.tokens.max(charge.tokens),
            }
        })
    }

    /// Removes the booking of an intent that is over. Returns whether the book changed. `fired` means that the
    /// booking was consumed: a booking with a day of its own then remains until that day is over, and counts as spent
    /// on it; a booking without one is charged to today.
    pub fn settle_booking(&mut self, id: Ulid, fired: bool, now: UnixMillis) -> bool {
        let Some(booking) = self.bookings.get(&id).copied() else {
            return false;
        };
        // Kept until its day is over, on which `charge_of` still counts it.
        if fired && booking.due.is_some_and(|due| due <= now) {
            return false;
        }

        self.bookings.remove(&id);

        if fired && booking.due.is_none() {
            let charge = self.spent.entry(day_of(now)).or_default();
            charge.firings += u64::from(booking.firings);
            charge.tokens += booking.tokens;
        }

        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: UnixMillis = UnixMillis(100 * DAY_MS + DAY_MS / 2);

    fn booking(due: Option<i64>) -> IntentBooking {
        IntentBooking {
            due: due.map(UnixMillis),
            firings: 1,
            tokens: 10,
        }
    }

    #[test]
    fn a_booking_is_spent_on_its_day_and_forgotten_with_it() {
        let mut book = AgentBook::default();
        book.bookings.insert(Ulid::from_parts(1, 1), booking(Some(NOON.0 + 1)));
        assert_eq!((book.pending_count(NOON), book.charge_of(100).tokens), (1, 10));
        assert_eq!(
            (book.pending_count(NOON.plus(1)), book.charge_of(100).tokens),
            (0, 10),
            "fired: spent"
        );

        book.forget_past(NOON.plus(DAY_MS));
        assert_eq!(book, AgentBook::default());
    }

    #[test]
    fn what_may_fire_on_any_day_counts_on_each() {
        let mut book = AgentBook::default();
        book.bookings.insert(Ulid::from_parts(1, 1), booking(None));
        book.bookings
            .insert(Ulid::from_parts(1, 2), booking(Some(NOON.0 + 3 * DAY_MS)));
        assert_eq!(book.charge_of(100).tokens, 10);
        assert_eq!(book.charge_of(103).tokens, 20);
        assert_eq!(book.heaviest_charge(100).tokens, 20);
        book.forget_past(NOON.plus(9 * DAY_MS));
        assert_eq!(book.bookings.len(), 1, "the one without a day stays");
    }

    #[test]
    fn a_withdrawn_reservation_is_free_and_a_consumed_one_is_not() {
        let mut book = AgentBook::default();
        for number in 0..2 {
            book.bookings.insert(Ulid::from_parts(1, number), booking(None));
        }
        assert!(book.settle_booking(Ulid::from_parts(1, 0), false, NOON));
        assert!(book.settle_booking(Ulid::from_parts(1, 1), true, NOON));
        assert!(!book.settle_booking(Ulid::from_parts(1, 1), true, NOON));
        assert_eq!(book.charge_of(100).tokens, 10, "once");
        assert_eq!(book.charge_of(101).tokens, 0);
    }

    #[test]
    fn one_of_a_day_is_spent_there_and_free_where_that_day_never_comes() {
        let mut book = AgentBook::default();
        book.bookings.insert(Ulid::from_parts(1, 1), booking(Some(NOON.0)));
        book.bookings
            .insert(Ulid::from_parts(1, 2), booking(Some(NOON.0 + 3 * DAY_MS)));
        assert!(!book.settle_booking(Ulid::from_parts(1, 1), true, NOON));
        assert!(
            book.settle_booking(Ulid::from_parts(1, 2), true, NOON),
            "moved, then withdrawn"
        );
        assert_eq!((book.charge_of(100).tokens, book.charge_of(103).tokens), (10, 0));
    }
}
