//! What a watch has told, and what it has to tell when it reads its bucket again. *Pure.*
//!
//! A bucket keeps the last message of each key, and nothing of what was there before: whether it is the one that was
//! read before cannot be asked of one position. So all of it is read again, and compared key by key.

use std::collections::{BTreeMap, BTreeSet};

/// A message of a bucket: its revision, and when the server stored it, nanoseconds since 1970.
pub(super) type Place = (u64, i64);

/// What a message says when a bucket is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// What was told already.
    Known,
    /// What was not.
    News,
    /// Less than what was told: the bucket was put back, or whoever is read from lags behind its leader.
    Less,
}

/// What was told, by key.
#[derive(Debug, Default)]
pub(super) struct Told {
    places: BTreeMap<String, Place>,
    /// Keys that were told and were not met since the bucket is read again.
    missing: BTreeSet<String>,
    /// The highest revision that was met.
    last: u64,
}

impl Told {
    /// The bucket is read again.
    pub(super) fn begin(&mut self) {
        self.missing = self.places.keys().cloned().collect();
    }

    /// The bucket is another: no revision counts any more, and every key is to be told again.
    pub(super) fn forget(&mut self) {
        self.last = 0;
        for place in self.places.values_mut() {
            *place = (0, 0);
        }
    }

    /// The highest revision that was met.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// The key that was told to have the lowest revision, and that; none where no key is there.
    pub(super) fn first(&self) -> Option<(&str, u64)> {
        let first = self.places.iter().min_by_key(|(_, (revision, _))| *revision);
        first.map(|(key, (revision, _))| (key.as_str(), *revision))
    }

    /// What the message at `place` says of `key`.
    pub(super) fn says(&self, key: &str, place: Place) -> Says {
        match self.places.get(key) {
            Some(known) if *known == place => Says::Known,
            Some((revision, _)) if *revision >= place.0 => Says::Less,
            Some(_) | None => Says::News,
        }
    }

    /// `key` is there.
    pub(super) fn met(&mut self, key: &str) {
        self.missing.remove(key);
    }

    /// `key` is told to have the message at `place`: a value, or (`is_there` = false) a marker.
    pub(super) fn tell(&mut self, key: &str, place: Place, is_there: bool) {
        self.met(key);
        self.last = self.last.max(place.0);
        if is_there {
            self.places.insert(key.to_owned(), place);
        } else {
            self.places.remove(key);
        }
    }

    /// A key that was not met since the bucket is read again.
    pub(super) fn missing(&self) -> Option<&String> {
        self.missing.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(keys: &[(&str, Place)]) -> Told {
        let mut told = Told::default();
        for (key, place) in keys {
            told.tell(key, *place, true);
        }
        told
    }

    #[test]
    fn the_same_message_is_no_news_and_a_lower_one_is_less() {
        let told = told(&[("a", (7, 70))]);
        assert_eq!(told.says("a", (7, 70)), Says::Known);
        assert_eq!(told.says("a", (8, 80)), Says::News);
        assert_eq!(told.says("b", (3, 30)), Says::News);
        assert_eq!(told.says("a", (6, 60)), Says::Less);
        assert_eq!(told.says("a", (7, 71)), Says::Less, "the number was given out again");
    }

    #[test]
    fn what_is_not_met_again_is_missing() {
        let mut told = told(&[("a", (7, 70)), ("b", (8, 80)), ("c", (9, 90))]);
        told.begin();
        told.met("a");
        told.tell("c", (12, 120), false);
        assert_eq!(told.missing().map(String::as_str), Some("b"));
        told.tell("b", (12, 0), false);
        assert_eq!((told.missing(), told.first(), told.last()), (None, Some(("a", 7)), 12));
    }

    #[test]
    fn in_another_bucket_everything_is_news() {
        let mut told = told(&[("a", (7, 70))]);
        told.forget();
        told.begin();
        assert_eq!(told.says("a", (7, 70)), Says::News, "also what is the same");
        assert_eq!(told.says("a", (1, 10)), Says::News);
        assert_eq!((told.last(), told.missing().map(String::as_str)), (0, Some("a")));
    }
}
