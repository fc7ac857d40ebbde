//! When posts of an account could be taken, so that what Slack gave up in the meantime is told. *Pure,* apart from its lock.
//!
//! The watermark says up to when the account is complete. While the bus is away it cannot be written, and is no sign of a
//! loss by itself: the posts go to the spool. So each replica also knows since when it takes posts without a break, and when
//! it refused one for the last time.

use std::sync::{Mutex, PoisonError};

use shared::model::time::UnixMillis;

use super::REPEATED_MS;
use crate::source::port::SourceGap;

/// Time after a refusal for which posts do not count as taken, in milliseconds: Slack posts a payload again after a minute.
const REFUSED_MS: i64 = 60_000;

/// The posts of one account, as this replica takes them.
#[derive(Debug)]
pub struct PostRecord {
    /// Whether posts are taken while the bus is away.
    keeps_on_disk: bool,
    state: Mutex<RecordState>,
}

#[derive(Debug, Default)]
struct RecordState {
    /// Time since which posts are taken without a break; `None` before the account is known.
    since: Option<UnixMillis>,
    /// Time at which this process was seen at work last.
    seen_at: Option<UnixMillis>,
    refused_at: Option<UnixMillis>,
}

impl PostRecord {
    /// Returns the record of an account that takes no posts yet. `keeps_on_disk` says that posts are taken while the bus is
    /// away.
    #[must_use]
    pub fn new(keeps_on_disk: bool) -> Self {
        Self {
            keeps_on_disk,
            state: Mutex::default(),
        }
    }

    /// Notes that this process takes posts at `now`. A long time without such a note is a break: the host may have slept.
    pub fn note_alive(&self, now: UnixMillis) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_break = state.seen_at.is_none_or(|seen| now.since(seen) > REPEATED_MS);
        if is_break {
            state.since = Some(now);
        }
        state.seen_at = Some(now);
    }

    /// Notes that a post of Slack's was refused at `now`, so that Slack posts it again for a while.
    pub fn note_refused(&self, now: UnixMillis) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).refused_at = Some(now);
    }

    /// Returns whether posts are taken at `now`, as far as it is known.
    #[must_use]
    pub fn takes_posts(&self, now: UnixMillis) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refusing = state.refused_at.is_some_and(|at| now.since(at) < REFUSED_MS);
        state.since.is_some() && !is_refusing
    }

    /// Returns the gap at `now` of an account that was complete until `from`; `None` if Slack has repeated everything that
    /// was not taken.
    #[must_use]
    pub fn find_gap(&self, from: UnixMillis, now: UnixMillis) -> Option<SourceGap> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = |at: Option<UnixMillis>| at.is_some_and(|at| at > from);
        let may_miss = !self.keeps_on_disk || is_later(state.since) || is_later(state.refused_at);
        let is_long = now.since(from) > REPEATED_MS;
        (is_long && may_miss).then(|| SourceGap {
            from,
            to: now,
            item: None,
            reason: "posts were not taken for longer than Slack repeats them: some messages may be missing".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixMillis = UnixMillis(1_700_000_000_000);

    fn at(minutes: i64) -> UnixMillis {
        START.plus(minutes * 60_000)
    }

    /// A record of a process that is at work from `from` to `to`.
    fn record(keeps_on_disk: bool, from: i64, to: i64) -> PostRecord {
        let record = PostRecord::new(keeps_on_disk);
        (from..=to).for_each(|minute| record.note_alive(at(minute)));
        record
    }

    #[test]
    fn a_process_that_came_too_late_has_a_gap() {
        let gap = |minute: i64| record(true, minute, minute).find_gap(START, at(minute));
        assert_eq!(gap(5), None);
        let found = gap(6).expect("a gap");
        assert_eq!((found.from, found.to), (START, at(6)));
    }

    #[test]
    fn posts_that_went_to_the_spool_are_not_missing_and_refused_ones_may_be() {
        // The watermark was not written for an hour, while this process was at work.
        assert_eq!(record(true, -9, 60).find_gap(START, at(60)), None);
        assert!(record(false, -9, 60).find_gap(START, at(60)).is_some());

        let refusing = record(true, -9, 60);
        refusing.note_refused(at(-1));
        assert_eq!(refusing.find_gap(START, at(60)), None);
        refusing.note_refused(at(30));
        assert!(refusing.find_gap(START, at(60)).is_some());
        assert!(refusing.takes_posts(at(31)) && !refusing.takes_posts(at(31).plus(-1)));
    }

    #[test]
    fn a_host_that_slept_has_a_gap() {
        let slept = record(true, -9, 1);
        slept.note_alive(at(6));
        assert_eq!(slept.find_gap(at(1), at(6)), None);
        slept.note_alive(at(12));
        assert!(slept.find_gap(at(6), at(12)).is_some());
    }

    #[test]
    fn an_account_that_is_not_known_takes_no_posts() {
        assert!(!PostRecord::new(true).takes_posts(START));
        assert!(record(true, 0, 0).takes_posts(START));
    }
}
