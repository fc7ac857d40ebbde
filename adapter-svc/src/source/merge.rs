//! Messages that come alone and belong together are merged to one event: the files of an album, and the texts that one person
//! writes behind each other, which are a burst. *Pure.*
//!
//! No platform says how much is still to come, so an album or a burst is complete if nothing of it came for a while, and a
//! burst also if something else happens at its place. What comes behind waits, so that a place keeps its order. Source:
//! <https://core.telegram.org/bots/api#message>, `media_group_id`; `docs/configuration.md` "channels.yaml".
//!
//! Which messages an event has is decided once: its [`MergeDecision`] is stored before the event is published, and again once
//! the event is. Otherwise a message that came late, and was an event of its own, could be in the merged event after a crash,
//! which is a repetition that no service reads: it would be lost. A decision whose event is stored drops its messages when
//! they come again; one whose event may be missing merges them as before. A text that was written before a run started, and of
//! which no decision is known, is an event of its own: it may be stored, by a run whose decisions are lost.

mod decision;
mod parts;
mod texts;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shared::model::event::Event;
use shared::model::time::UnixMillis;

pub use self::decision::{MergeDecision, MergeMemory, note_decision};
use self::parts::{album_of, is_text, merge_parts, message_number};
pub use self::texts::{MergedTexts, as_read_again, change_merged};
pub use self::waiting::ReadyEvent;
use self::waiting::{OpenMerge, Waiting};

/// Beginning of a burst's name, before the number of its first message. Platforms' names of albums are numbers.
const BURST: &str = "burst/";

/// Maximum time for which an album is open, as a multiple of the wait for its next message.
const MOST_WAITS: i64 = 5;

/// Maximum number of messages of a burst.
const MAX_BURST: usize = 20;

/// Maximum length of the texts of a burst, in bytes: an event that the server does not take would be lost.
const MAX_BURST_BYTES: usize = 64 * 1024;

/// Time for which the messages of a decision are awaited whose event may not be stored, in milliseconds. What came by then is
/// an event without the others.
const REBUILD_MS: i64 = 30_000;

/// Maximum time between two looks at what waits, in milliseconds.
const LOOK_EVERY_MS: i64 = 1_000;

/// Maximum number of decisions that are remembered.
const MAX_REMEMBERED: usize = 1_000;

/// Maximum number of decisions that are stored.
const MAX_STORED: usize = 200;

/// How long messages wait for what belongs to them, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeWaits {
    /// Wait for an album's next message; an album is open for five times as long at most.
    pub album_ms: i64,
    /// Wait for the next text of a burst; 0 = each text is an event of its own.
    pub burst_ms: i64,
    /// Maximum time for which a burst is open.
    pub burst_most_ms: i64,
    /// Time up to which texts are events of their own unless it was decided otherwise: an earlier run may have stored them,
    /// and what it decided may be lost. For a platform whose messages have no numbers that say it ([`MergeMemory::until`]).
    pub alone_until: UnixMillis,
}

impl MergeWaits {
    /// Returns the waits of an account with `debounce_ms`, whose platform has no albums: a burst is open for five times as
    /// long at most.
    #[must_use]
    pub fn of_texts(debounce_ms: u64) -> Self {
        let burst_ms = i64::try_from(debounce_ms).unwrap_or(i64::MAX);
        Self {
            album_ms: 0,
            burst_ms,
            burst_most_ms: burst_ms.saturating_mul(MOST_WAITS),
            alone_until: UnixMillis::default(),
        }
    }
}

/// What a message belongs to.
#[derive(Debug)]
enum Belonging {
    /// It is an event of its own.
    Alone,
    /// Its event is stored.
    Stored,
    /// It is part of the album or burst of this name, which was decided to have a number of messages.
    Part(String, Option<usize>),
}

/// The albums and bursts that are not complete, and the events that wait behind them.
#[derive(Debug)]
pub struct MessageMerger<K> {
    waits: MergeWaits,
    places: BTreeMap<String, VecDeque<Waiting<K>>>,
    memory: MergeMemory,
}

impl<K> MessageMerger<K> {
    /// Returns a merger that waits as `waits` says. `memory` has the decisions of before.
    #[must_use]
    pub const fn new(waits: MergeWaits, memory: MergeMemory) -> Self {
        Self {
            waits,
            places: BTreeMap::new(),
            memory,
        }
    }

    /// Takes `event`, which happened at `place` and was handed over as `key`. Ask [`MessageMerger::take_ready`] for those that
    /// may be published. Returns `false` if it is stored already, as part of another event.
    pub fn push(&mut self, place: &str, key: K, event: Event, now: UnixMillis) -> bool {
        let (name, expected) = match self.belonging_of(place, &event) {
            Belonging::Stored => return false,
            Belonging::Alone => {
                let event = Box::new(event);
                self.append(place, Waiting::Single { key, event });
                return true;
            }
            Belonging::Part(name, expected) => (name, expected),
        };

        let number = message_number(&event);
        let merges = self.places.get_mut(place).into_iter().flatten();
        let mut merges = merges.filter_map(Waiting::as_merge);
        // A message that came too late is not in the album that was decided.
        let open = merges.find(|open| open.has(number) || open.takes(&name, expected));
        if let Some(open) = open {
            // The same message comes again as long as it is not confirmed.
            if !open.has(number) {
                open.parts.push(event);
                open.grown = now;
            }
            open.keys.push(key);
            return true;
        }

        let is_burst = name.starts_with(BURST);
        let (wait_ms, most_ms) = if is_burst {
            (self.waits.burst_ms, self.waits.burst_most_ms)
        } else {
            (self.waits.album_ms, self.waits.album_ms.saturating_mul(MOST_WAITS))
        };
        let open = OpenMerge {
            name,
            wait_ms,
            most_ms,
            parts: vec![event],
            keys: vec![key],
            opened: now,
            grown: now,
            expected,
            is_closed: false,
        };
        self.append(place, Waiting::Merge(open));
        true
    }

    /// Adds `waiting` behind what waits at `place`. A burst there is complete then.
    fn append(&mut self, place: &str, waiting: Waiting<K>) {
        let queue = self.places.entry(place.to_owned()).or_default();
        let last = queue.back_mut().and_then(Waiting::as_merge);
        if let Some(last) = last.filter(|last| last.name.starts_with(BURST) && last.expected.is_none()) {
            last.is_closed = true;
        }
        queue.push_back(waiting);
    }

    /// Returns what `event`, which happened at `place`, belongs to.
    fn belonging_of(&self, place: &str, event: &Event) -> Belonging {
        let album = album_of(event);
        if album.is_none() && !is_text(event) {
            return Belonging::Alone;
        }

        let number = message_number(event);
        if let Some(decided) = self.decision_of(place, number) {
            let expected = Some(decided.messages.len());
            return if decided.is_stored {
                Belonging::Stored
            } else {
                Belonging::Part(decided.name.clone(), expected)
            };
        }
        if let Some(album) = album {
            return Belonging::Part(album, None);
        }

        let is_before = self.memory.until.is_some_and(|until| number <= until);
        let may_be_stored = is_before || event.timestamp <= self.waits.alone_until;
        if self.waits.burst_ms <= 0 || may_be_stored {
            return Belonging::Alone;
        }
        // Only what is at the end of the queue: between the texts of a burst nothing else happens at its place.
        let last = self.places.get(place).and_then(VecDeque::back);
        let open = last.and_then(|last| last.burst_before(event)).map(str::to_owned);
        Belonging::Part(open.unwrap_or_else(|| format!("{BURST}{number}")), None)
    }

    /// Returns the decision that the message `number` of `place` is part of.
    fn decision_of(&self, place: &str, number: i64) -> Option<&MergeDecision> {
        let mut decided = self.memory.decided.iter().rev();
        decided.find(|decided| decided.place == place && decided.messages.contains(&number))
    }

    /// Returns the events that may be published at `now`, in the order of each place.
    pub fn take_ready(&mut self, now: UnixMillis) -> Vec<ReadyEvent<K>> {
        self.take_some_ready(now, usize::MAX)
    }

    /// As [`MessageMerger::take_ready`], but at most `most` events: for a source whose messages do not come in batches, so that
    /// not more is decided at once than is stored ([`MessageMerger::to_stored`]).
    pub fn take_some_ready(&mut self, now: UnixMillis, most: usize) -> Vec<ReadyEvent<K>> {
        let mut ready = Vec::new();
        for (place, queue) in &mut self.places {
            while ready.len() < most && queue.front().is_some_and(|first| first.is_ready(now)) {
                ready.extend(queue.pop_front().map(|waiting| waiting.into_ready(place)));
            }
        }
        self.places.retain(|_, queue| !queue.is_empty());

        for decision in ready.iter().filter_map(|ready| ready.decision.clone()) {
            self.note_decided(decision);
        }
        ready
    }

    fn note_decided(&mut self, decision: MergeDecision) {
        note_decision(&mut self.memory.decided, decision);
        let excess = self.memory.decided.len().saturating_sub(MAX_REMEMBERED);
        for forgotten in self.memory.decided.drain(..excess) {
            let last = forgotten.messages.last().copied();
            self.memory.until = self.memory.until.max(self.memory.until.and(last));
        }
    }

    /// Takes texts that were written up to `until` for events of their own from now on, unless it was decided otherwise: a text
    /// that comes so late may have come before, and its decision may be forgotten.
    pub fn note_alone_until(&mut self, until: UnixMillis) {
        self.waits.alone_until = self.waits.alone_until.max(until);
    }

    /// Takes in that the events of `decisions` are stored.
    pub fn note_stored(&mut self, decisions: &[MergeDecision]) {
        let decided = self.memory.decided.iter_mut();
        for one in decided.filter(|one| decisions.iter().any(|other| other.is_same(one))) {
            one.is_stored = true;
        }
    }

    /// Returns what must be stored: the decisions about several messages, and how far texts were decided.
    #[must_use]
    pub fn to_stored(&self) -> MergeMemory {
        let decided = &self.memory.decided;
        let last = decided.iter().filter_map(|one| one.messages.last().copied()).max();
        // While texts are not merged, nothing is known of them: the next start that merges them takes earlier ones for stored.
        let until = self.memory.until.filter(|_| self.waits.burst_ms > 0);
        let several = decided.iter().filter(|one| one.messages.len() > 1);
        let excess = several.clone().count().saturating_sub(MAX_STORED);
        MergeMemory {
            until: until.map(|until| last.map_or(until, |last| last.max(until))),
            decided: several.skip(excess).cloned().collect(),
        }
    }

    /// Returns the events of `events`, which the history of `place` has, as they are to be stored: without those that are
    /// stored as part of another event, and merged as it was decided where that event may be missing, with those decisions.
    /// Nothing is merged with them later. What waits at the place is to be stored before ([`MessageMerger::close`]).
    pub fn merge_page(&mut self, place: &str, events: Vec<Event>) -> (Vec<Event>, Vec<MergeDecision>) {
        let mut merged: Vec<(Option<String>, Vec<Event>)> = Vec::with_capacity(events.len());
        for event in events {
            let number = message_number(&event);
            if self.waits.burst_ms > 0 {
                self.memory.until = self.memory.until.map(|until| until.max(number));
            }
            let name = match self.decision_of(place, number) {
                Some(decided) if decided.is_stored => continue,
                Some(decided) => Some(decided.name.clone()),
                None => None,
            };
            let open = merged.iter_mut().find(|(open, _)| open.is_some() && *open == name);
            match open {
                Some((_, parts)) => parts.push(event),
                None => merged.push((name, vec![event])),
            }
        }

        let mut decisions = Vec::new();
        for (name, parts) in &merged {
            decisions.extend(name.as_ref().map(|name| MergeDecision {
                place: place.to_owned(),
                name: name.clone(),
                messages: parts.iter().map(message_number).collect(),
                is_stored: false,
            }));
        }
        decisions
            .iter()
            .for_each(|decision| self.note_decided(decision.clone()));
        let events = merged.into_iter().map(|(_, parts)| merge_parts(parts)).collect();
        (events, decisions)
    }

    /// Awaits nothing more at `place`: what waits there may be published.
    pub fn close(&mut self, place: &str) {
        let waiting = self.places.get_mut(place).into_iter().flatten();
        waiting
            .filter_map(Waiting::as_merge)
            .for_each(|open| open.is_closed = true);
    }

    /// Awaits nothing more at any place.
    pub fn close_all(&mut self) {
        let waiting = self.places.values_mut().flatten();
        waiting
            .filter_map(Waiting::as_merge)
            .for_each(|open| open.is_closed = true);
    }

    /// Awaits nothing more for what may still grow. What was decided before is still awaited: it may be stored whole.
    pub fn close_growing(&mut self) {
        let waiting = self.places.values_mut().flatten();
        let merges = waiting.filter_map(Waiting::as_merge);
        let growing = merges.filter(|open| open.expected.is_none());
        growing.for_each(|open| open.is_closed = true);
    }

    /// Returns the time at which the next album or burst is complete if nothing more comes of it; `None` without an open one.
    fn next_due(&self) -> Option<UnixMillis> {
        let fronts = self.places.values().filter_map(VecDeque::front);
        fronts.map(Waiting::due).min()
    }

    /// Returns the time from `now` until [`MessageMerger::take_ready`] is to be asked; `None` if nothing waits.
    #[must_use]
    pub fn until_due(&self, now: UnixMillis) -> Option<Duration> {
        // The clock may be changed meanwhile.
        let left = self.next_due()?.since(now).clamp(1, LOOK_EVERY_MS);
        Some(Duration::from_millis(u64::try_from(left).unwrap_or(1)))
    }

    /// Returns the time since which the first message waits; `None` if none waits.
    #[must_use]
    pub fn waiting_since(&self) -> Option<UnixMillis> {
        let waiting = self.places.values().flatten();
        let opened = waiting.filter_map(|waiting| match waiting {
            Waiting::Single { .. } => None,
            Waiting::Merge(open) => Some(open.opened),
        });
        opened.min()
    }

    /// Returns the time up to which everything is stored that happened by `now`, both by the platform's clock: a moment before
    /// the oldest event that waits.
    #[must_use]
    pub fn complete_until(&self, now: UnixMillis) -> UnixMillis {
        let waiting = self.places.values().flatten().flat_map(Waiting::events);
        let oldest = waiting.map(|event| event.timestamp).min();
        oldest.map_or(now, |oldest| oldest.plus(-1).min(now))
    }

    /// Returns the keys of everything that waits. None of it may be confirmed.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.places.values().flatten().flat_map(Waiting::keys)
    }

    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests;
