//! Dispatches that wait until it is known where they happened. *Pure.*
//!
//! Those of one channel keep their order; those of others go on. The session is confirmed up to the first that waits, so
//! that a crash brings all of them again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::drive::HeldDispatch;
use super::link::Dispatch;

/// Maximum number of channels whose dispatches wait.
const MAX_CHANNELS: usize = 200;

/// Maximum number of dispatches that wait.
const MAX_DISPATCHES: usize = 2_000;

/// Maximum size of the dispatches that wait, in bytes as the gateway sent them.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The dispatches of a channel that wait.
#[derive(Debug)]
struct HeldChannel {
    /// Time since which the first one waits, or one before it did.
    since: Instant,
    queue: VecDeque<HeldDispatch>,
}

/// The dispatches that wait, by channel.
#[derive(Debug, Default)]
pub(super) struct DeferredDispatches {
    channels: BTreeMap<String, HeldChannel>,
    count: usize,
    bytes: usize,
}

impl DeferredDispatches {
    /// Returns whether dispatches of `channel` wait.
    #[must_use]
    pub(super) fn holds(&self, channel: &str) -> bool {
        self.channels.contains_key(channel)
    }

    /// Returns whether none waits.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Returns the channels with their first dispatches.
    pub(super) fn fronts(&self) -> impl Iterator<Item = (&str, &Dispatch)> {
        let fronts = self.channels.iter();
        fronts.filter_map(|(channel, held)| Some((channel.as_str(), &held.queue.front()?.dispatch)))
    }

    /// Returns the first dispatch of `channel`, and the time since which dispatches of it wait.
    #[must_use]
    pub(super) fn front(&self, channel: &str) -> Option<(&Dispatch, Instant)> {
        let held = self.channels.get(channel)?;
        Some((&held.queue.front()?.dispatch, held.since))
    }

    /// Returns the lowest number of the dispatches of `session` that wait.
    #[must_use]
    pub(super) fn first_seq(&self, session: &str) -> Option<u64> {
        let fronts = self.channels.values().flat_map(|held| held.queue.iter());
        let of_session = fronts.filter(|held| held.dispatch.session == session);
        of_session.map(|held| held.dispatch.seq).min()
    }

    /// Adds `held`, which happened in `channel`, at `now`. Returns whether a bound is reached with it. One that is there
    /// already, because the session was resumed, is not added again.
    pub(super) fn push(&mut self, channel: &str, held: HeldDispatch, now: Instant) -> bool {
        let fresh = || HeldChannel {
            since: now,
            queue: VecDeque::new(),
        };
        let queue = &mut self.channels.entry(channel.to_owned()).or_insert_with(fresh).queue;
        let is_known = |known: &HeldDispatch| {
            known.dispatch.session == held.dispatch.session && known.dispatch.seq >= held.dispatch.seq
        };
        if !queue.back().is_some_and(is_known) {
            self.count += 1;
            self.bytes += held.bytes;
            queue.push_back(held);
        }
        self.channels.len() > MAX_CHANNELS || self.count > MAX_DISPATCHES || self.bytes > MAX_BYTES
    }

    /// Removes the first dispatch of `channel`.
    pub(super) fn pop(&mut self, channel: &str) -> Option<HeldDispatch> {
        let queue = &mut self.channels.get_mut(channel)?.queue;
        let held = queue.pop_front();
        if queue.is_empty() {
            self.channels.remove(channel);
        }
        if let Some(held) = &held {
            self.count -= 1;
            self.bytes -= held.bytes;
        }
        held
    }

    /// Removes all dispatches of `channel`.
    pub(super) fn take(&mut self, channel: &str) -> Vec<HeldDispatch> {
        std::iter::from_fn(|| self.pop(channel)).collect()
    }

    /// Returns the channels and ids of the messages that wait.
    #[must_use]
    pub(super) fn messages(&self) -> Vec<(String, u64)> {
        let all = self.channels.iter();
        let all = all.flat_map(|(channel, held)| held.queue.iter().map(move |held| (channel, &held.dispatch)));
        let messages = all.filter(|(_, dispatch)| dispatch.kind == "MESSAGE_CREATE");
        let ids = messages.filter_map(|(channel, dispatch)| {
            let id = dispatch.data.get("id")?.as_str()?.parse().ok()?;
            Some((channel.clone(), id))
        });
        ids.collect()
    }

    /// Returns the channels.
    #[must_use]
    pub(super) fn channels(&self) -> Vec<String> {
        self.channels.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    fn held(session: &str, seq: u64, bytes: usize) -> HeldDispatch {
        let dispatch = Dispatch {
            session: session.to_owned(),
            seq,
            kind: "MESSAGE_CREATE".to_owned(),
            data: Value::Null,
        };
        HeldDispatch::new(dispatch, bytes)
    }

    #[test]
    fn a_channel_keeps_its_order_and_the_session_is_confirmed_up_to_the_first() {
        let (mut deferred, now) = (DeferredDispatches::default(), SystemClock.monotonic());
        assert!(deferred.is_empty() && deferred.first_seq("s").is_none());
        for (channel, seq) in [("1", 7), ("2", 5), ("1", 8), ("1", 9)] {
            assert!(!deferred.push(channel, held("s", seq, 10), now));
        }
        // A resumed session brings them again.
        assert!(!deferred.push("1", held("s", 7, 10), now));
        assert_eq!(deferred.first_seq("s"), Some(5));
        assert_eq!(deferred.first_seq("other"), None);
        let seqs: Vec<u64> = deferred.take("1").iter().map(|held| held.dispatch.seq).collect();
        assert_eq!(seqs, [7, 8, 9]);
        assert_eq!(deferred.take("1").len(), 0);
        assert!(deferred.holds("2") && !deferred.holds("1"));
        assert_eq!((deferred.count, deferred.bytes), (1, 10));

        // A later one does not make a channel wait anew.
        deferred.push("2", held("s", 10, 10), now + Duration::from_secs(9));
        let front = deferred.front("2").map(|(front, since)| (front.seq, since));
        assert_eq!((front, deferred.front("1").is_none()), (Some((5, now)), true));
    }

    #[test]
    fn channels_dispatches_and_bytes_have_a_bound_each() {
        let (mut many, now) = (DeferredDispatches::default(), SystemClock.monotonic());
        for number in 0..u64::try_from(MAX_DISPATCHES).expect("small") {
            assert!(!many.push("1", held("s", number, 1), now), "{number}");
        }
        assert!(many.push("1", held("s", 1_000_000, 1), now));

        let mut wide = DeferredDispatches::default();
        for number in 0..MAX_CHANNELS {
            assert!(!wide.push(&number.to_string(), held("s", 1, 1), now), "{number}");
        }
        assert!(wide.push("one more", held("s", 2, 1), now));

        let mut large = DeferredDispatches::default();
        assert!(!large.push("1", held("s", 1, MAX_BYTES), now));
        assert!(large.push("1", held("s", 2, 1), now));
        large.take("1");
        assert!(!large.push("1", held("s", 3, MAX_BYTES), now));
    }
}
