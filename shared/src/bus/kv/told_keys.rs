//! Record of the events that a watch has sent, and of those it must send after it has read its bucket again. *Pure.*
//!
//! A bucket keeps the last message of each key and no history, so no single position can show whether it is the same
//! bucket as before. The whole bucket is read again instead, and compared key by key.

use std::collections::{BTreeMap, BTreeSet};

/// Position of a message in a bucket: its revision, and the time at which the server stored it, nanoseconds since
/// 1970.
pub(super) type Place = (u64, i64);

/// Relation of a message to the events sent before, when a bucket is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToldVerdict {
    /// The event was sent already.
    Known,
    /// The event was not sent yet.
    News,
    /// The message is older than the event that was sent: the bucket was restored, or the server that is read lags
    /// behind its leader.
    Less,
}

/// Positions of the events sent, by key.
#[derive(Debug, Default)]
pub(super) struct ToldKeys {
    places: BTreeMap<String, Place>,
    /// Keys that have a value for the watcher and have not been met since the bucket is being read again.
    missing: BTreeSet<String>,
    /// Highest revision that was met.
    last: u64,
}

impl ToldKeys {
    /// Starts a new reading of the whole bucket.
    pub(super) fn start_reread(&mut self) {
        self.missing = self.places.keys().cloned().collect();
    }

    /// Resets all revisions, because the bucket is another one: every key must be sent again.
    pub(super) fn reset_bucket(&mut self) {
        self.last = 0;
        for place in self.places.values_mut() {
            *place = (0, 0);
        }
    }

    /// Highest revision that was met.
    pub(super) const fn last_revision(&self) -> u64 {
        self.last
    }

    /// Returns whether a value of `key` was sent.
    pub(super) fn has_value(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Returns the key with the lowest revision, and that revision; `None` if no key has a value.
    pub(super) fn lowest_key(&self) -> Option<(&str, u64)> {
        let first = self.places.iter().min_by_key(|(_, (revision, _))| *revision);
        first.map(|(key, (revision, _))| (key.as_str(), *revision))
    }

    /// Compares the message at `place` with the event that was sent for `key`.
    pub(super) fn compare_message(&self, key: &str, place: Place) -> ToldVerdict {
        match self.places.get(key) {
            Some(known) if *known == place => ToldVerdict::Known,
            Some((revision, _)) if *revision >= place.0 => ToldVerdict::Less,
            Some(_) | None => ToldVerdict::News,
        }
    }

    /// Records that `key` was met in this reading.
    pub(super) fn mark_met(&mut self, key: &str) {
        self.missing.remove(key);
    }

    /// Records that the message of `key` at `place` was sent: a value, or a marker if `is_there` is false.
    pub(super) fn record_told(&mut self, key: &str, place: Place, is_there: bool) {
        self.mark_met(key);
        self.last = self.last.max(place.0);
        if is_there {
            self.places.insert(key.to_owned(), place);
        } else {
            self.places.remove(key);
        }
    }

    /// Returns a key that was not met in this reading, if there is one.
    pub(super) fn unmet_key(&self) -> Option<&String> {
        self.missing.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(keys: &[(&str, Place)]) -> ToldKeys {
        let mut told = ToldKeys::default();
        for (key, place) in keys {
            told.record_told(key, *place, true);
        }
        told
    }

    #[test]
    fn the_same_message_is_no_news_and_a_lower_one_is_less() {
        let told = told(&[("a", (7, 70))]);
        assert_eq!(told.compare_message("a", (7, 70)), ToldVerdict::Known);
        assert_eq!(told.compare_message("a", (8, 80)), ToldVerdict::News);
        assert_eq!(told.compare_message("b", (3, 30)), ToldVerdict::News);
        assert_eq!(told.compare_message("a", (6, 60)), ToldVerdict::Less);
        assert_eq!(
            told.compare_message("a", (7, 71)),
            ToldVerdict::Less,
            "the number was given out again"
        );
    }

    #[test]
    fn what_is_not_met_again_is_missing() {
        let mut told = told(&[("a", (7, 70)), ("b", (8, 80)), ("c", (9, 90))]);
        told.start_reread();
        told.mark_met("a");
        told.record_told("c", (12, 120), false);
        assert_eq!(told.unmet_key().map(String::as_str), Some("b"));
        told.record_told("b", (12, 0), false);
        assert_eq!(
            (told.unmet_key(), told.lowest_key(), told.last_revision()),
            (None, Some(("a", 7)), 12)
        );
    }

    #[test]
    fn in_another_bucket_everything_is_news() {
        let mut told = told(&[("a", (7, 70))]);
        told.reset_bucket();
        told.start_reread();
        assert_eq!(
            told.compare_message("a", (7, 70)),
            ToldVerdict::News,
            "also a key that is the same"
        );
        assert_eq!(told.compare_message("a", (1, 10)), ToldVerdict::News);
        assert_eq!(
            (told.last_revision(), told.unmet_key().map(String::as_str)),
            (0, Some("a"))
        );
    }
}
